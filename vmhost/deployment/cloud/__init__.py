"""The platform: git repositories, builds, releases, devices, and the web application over them."""
