# requires: pluggy
import pluggy

spec, impl = pluggy.HookspecMarker("calls"), pluggy.HookimplMarker("calls")


class Spec:
    @spec
    def double(self, x):
        pass


class One:
    @impl
    def double(self, x):
        return 2 * x


def run(value):
    manager = pluggy.PluginManager("calls")
    manager.add_hookspecs(Spec)
    manager.register(One())
    return [manager.hook.double(x=4), manager.load_setuptools_entrypoints("calls")]
