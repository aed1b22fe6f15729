"""An example of each command, as its help shows it. Those of `vmhost cloud` are in docs/deployment.md."""

import click

EXAMPLES = {
    "init": ["vmhost init hello", "vmhost init digits --example digits"],
    "compile": ["vmhost compile hello -o hello.vmb --sign me", "vmhost compile --check model.onnx"],
    "test": ["vmhost test hello"],
    "lock": ["vmhost lock hello --upgrade"],
    "record": ["vmhost record app.py"],
    "inspect": ["vmhost inspect hello.vmb"],
    "run": [
        "vmhost run hello.vmb --allow-unsigned --input hello/input.json",
        "vmhost run hello.vmb --input '{\"numbers\": [1, 2]}' --timeout \"500 ms\"",
    ],
    "serve": ["vmhost serve bundles --allow-unsigned --dashboard 127.0.0.1:9464 < calls.jsonl"],
    "replay": ["vmhost replay hello.baseline --bundle new.vmb"],
    "demo": ["vmhost demo"],
    "dashboard": ["vmhost dashboard --listen 127.0.0.1:9464 --open"],
    "top": ["vmhost top http://127.0.0.1:9464/?token=TOKEN"],
    "coverage": ["vmhost coverage coverage.json --source hello --fail-under 80"],
    "crashes": ["vmhost crashes state"],
    "debug offer": ["vmhost debug offer state --for \"10 min\" --wait"],
    "debug consent": ["vmhost debug consent state"],
    "debug end": ["vmhost debug end state SESSION"],
    "debug revoke": ["vmhost debug revoke state LINK"],
    "debug sessions": ["vmhost debug sessions state"],
    "debug audit": ["vmhost debug audit state --limit 20"],
    "debug host": ["vmhost debug host state"],
    "debug clock": ["vmhost debug clock state"],
    "debug sign": ["vmhost debug sign HOST --key me --address http://127.0.0.1:9464"],
    "debug open": ["vmhost debug open LINK --wait \"5 min\""],
    "debug config": ["vmhost debug config LINK"],
    "debug logs": ["vmhost debug logs LINK --level warning --no-follow"],
    "debug run": ["vmhost debug run LINK digits input.json --profile --to reports"],
    "debug reports": ["vmhost debug reports LINK"],
    "debug fetch": ["vmhost debug fetch LINK metrics.txt --to reports"],
    "debug end-session": ["vmhost debug end-session LINK"],
    "explain": ["vmhost explain model.onnx --size batch=8"],
    "quantize": ["vmhost quantize model.onnx --calibrate examples.npz -o small.onnx"],
    "pipeline run": ["vmhost pipeline run shop visits.vmb --allow-unsigned --events events.jsonl"],
    "pipeline replay": ["vmhost pipeline replay shop again visits.vmb --allow-unsigned --speed 60"],
    "pipeline status": ["vmhost pipeline status shop"],
    "pipeline tables": ["vmhost pipeline tables shop visits --parquet visits.parquet"],
    "pipeline table": ["vmhost pipeline table shop visits --limit 5"],
    "pipeline events": ["vmhost pipeline events shop --name click --since 2026-11-25"],
    "pipeline features": ["vmhost pipeline features features.yaml --folder shop --key ann"],
    "pipeline explain-trigger": ["vmhost pipeline explain-trigger shop visits.vmb"],
    "pipeline explain-rule": ["vmhost pipeline explain-rule rule.yaml --events events.jsonl"],
    "pipeline compile-rule": ["vmhost pipeline compile-rule rule.yaml -o rule.json"],
    "pipeline match": ["vmhost pipeline match questions.jsonl"],
    "pipeline dead-letters": ["vmhost pipeline dead-letters shop visits"],
    "pipeline forget": ["vmhost pipeline forget shop ann --yes"],
    "reach test": ["vmhost reach test --title Hello"],
    "reach audit": ["vmhost reach audit shop --key ann"],
    "reach queue": ["vmhost reach queue shop"],
    "tunnel certificates": ["vmhost tunnel certificates keys --device ann"],
    "tunnel serve": ["vmhost tunnel serve cloud.sqlite --keys keys --listen 0.0.0.0:7443"],
    "tunnel send": ["vmhost tunnel send ann.sqlite --to localhost:7443 --keys keys --device ann --message hello"],
    "tunnel push": ["vmhost tunnel push cloud.sqlite ann news hello --ttl \"1 h\""],
    "tunnel status": ["vmhost tunnel status cloud.sqlite"],
    "tunnel train": ["vmhost tunnel train cloud.sqlite messages --size \"32 KiB\""],
    "tunnel decode": ["vmhost tunnel decode captured.bin"],
    "agent": ["vmhost agent agent.yaml"],
    "image": ["vmhost image build/image --bundle hello.vmb"],
    "doctor": ["vmhost doctor --all"],
    "keys new": ["vmhost keys new me --trust"],
    "keys list": ["vmhost keys list"],
    "keys trust": ["vmhost keys trust release.pub"],
    "keys sign": ["vmhost keys sign rules.yaml --key me"],
    "completion": ["vmhost completion bash"],
}  # fmt: skip


def with_examples(command, *words):
    """`command`, `vmhost WORDS...`, with its example below its help; so for the commands of a group that are there."""
    if lines := EXAMPLES.get(" ".join(words)):
        command.epilog = "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            if one is not None:
                with_examples(one, *words, name)
    return command
