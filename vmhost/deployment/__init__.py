"""The deployment platform: tasks in git are released step by step, to devices that prove that they run.

`cloud/` is the platform, `device/` the agent on each device; this folder has what both use. docs/deployment.md.
"""
