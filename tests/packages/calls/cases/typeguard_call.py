# requires: typeguard
from typeguard import TypeCheckError, typechecked


@typechecked
def double(x: int) -> "int | str":
    return 2 * x


@typechecked
class Holder:
    def put(self, *values: str) -> None:
        self.values: list[str] = list(values)


def run(value):
    holder = Holder()
    holder.put("a", "b")
    said = [double(2), holder.values]
    for call in (lambda: double("x"), lambda: holder.put(1, "a")):
        try:
            call()
        except TypeCheckError as error:
            said.append(str(error))
    return said
