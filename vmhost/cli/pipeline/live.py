"""The live table of a running pipeline, on stderr, if it is a terminal."""

import time

from vmhost.cli.pipeline import stores
from vmhost.cli.pipeline.status import TASK_COLUMNS, source_lines, task_rows

_SHOW_S = 0.25


class Live:
    """A context manager; `show()` may be called as often as one likes. `above`: a renderable shown on top. Without
    `shown`, without a terminal or with --json it does nothing."""

    def __init__(self, output, pipeline, sources=dict, above=None, shown=True):
        self._output, self._pipeline, self._sources, self._above = output, pipeline, sources, above
        self._live = None
        self._shown = shown and output.remarks.is_terminal and not output.as_json
        self._shown_s, self._marks = 0.0, []  # (time, position) of the last seconds
        self.note = None  # a line at the end

    def __enter__(self):
        if self._shown:
            from rich.live import Live as Display

            self._live = Display(console=self._output.remarks, auto_refresh=False, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error):
        if self._live is not None:
            self._live.__exit__(*error)
            self._live = None

    def show(self):
        now = time.monotonic()
        if self._live is None or now - self._shown_s < _SHOW_S:
            return
        self._shown_s = now
        self._live.update(self._picture(now), refresh=True)

    def _picture(self, now):
        from rich.console import Group
        from rich.text import Text

        from vmhost.cli import terminal

        figures = self._pipeline.statistics()
        position, intake = figures["position"], figures["intake"]
        self._marks = [mark for mark in self._marks if mark[0] > now - 5][-40:] + [(now, position)]
        since_s, since = self._marks[0]
        rate = (position - since) / (now - since_s) if now - since_s > 0.5 else 0.0
        line = f"{position:,} events, {rate:,.0f}/s; {intake['open_visits']:,} open visits"
        if intake["event_time_ms"] is not None:
            line += f"; event time {stores.moment(intake['event_time_ms'])[:19]}"
        late = intake["late"] + intake["after_close"]
        if late or intake["duplicates"]:
            line += f"; {late:,} late, {intake['duplicates']:,} twice"
        parts = [] if self._above is None else [self._above]
        parts += [Text(line, style="bold"), *map(Text, source_lines(self._sources()))]
        console = self._output.remarks
        rows = task_rows(figures["tasks"])
        if len(rows) > (room := max(3, console.height - len(parts) - 6)):
            parts.append(Text(f"the {room} busiest of {len(rows)} tasks", style="dim"))
            rows = sorted(rows, key=lambda row: -int(row[1].replace(",", "")))[:room]
        parts.append(terminal.fitting(console, "", TASK_COLUMNS, rows))
        if self._pipeline.store_error is not None:
            parts.append(Text(f"the store cannot be written: {self._pipeline.store_error}", style="red"))
        if self.note:
            parts.append(Text(self.note, style="yellow"))
        return Group(*parts)
