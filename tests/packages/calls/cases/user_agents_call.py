# requires: user-agents
from user_agents import parse


def run(value):
    found = parse(
        "Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
        "Version/17.0 Mobile/15E148 Safari/604.1"
    )
    return [str(found), found.is_mobile]
