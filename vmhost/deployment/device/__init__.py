"""The agent: states what the device has, pulls what it should have, proves that it runs, goes back if it does not."""
