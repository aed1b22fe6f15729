"""The deployment platform: tasks in git, released in steps, to devices that prove that they run.

`cloud/` is the platform, `device/` the agent on each device; what both know lies here. docs/deployment.md.
"""
