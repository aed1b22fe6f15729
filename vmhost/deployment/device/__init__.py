"""The agent: says what the device has, pulls what it should have, proves that it runs, goes back when it does not."""
