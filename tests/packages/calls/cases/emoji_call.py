# requires: emoji
import emoji


def run(value):
    return [
        emoji.emojize("Python is :thumbs_up:"),
        emoji.demojize("Python ist 👍", language="de"),
        emoji.emoji_count("👍👍"),
    ]
