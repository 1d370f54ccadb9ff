"""Only what pyproject.toml cannot say: the optional C extension (an install without a compiler works and says so)."""

from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

HARDENED = (["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"], ["-fstack-protector-strong"])
"""A buffer that overflows all the same ends the process instead of serving whoever filled it."""


class HardenedBuild(build_ext):
    """Adds the flags of `HARDENED` that the compiler takes."""

    def build_extension(self, ext: Extension) -> None:
        ext.extra_compile_args += [flag for flags in HARDENED if self.takes(flags) for flag in flags]
        super().build_extension(ext)

    def takes(self, flags: list[str]) -> bool:
        with TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text("int probe;\n")
            try:
                self.compiler.compile([str(source)], output_dir=folder, extra_postargs=["-Werror", *flags])
            except CompileError:
                return False
            return True


setup(
    cmdclass={"build_ext": HardenedBuild},
    ext_modules=[
        Extension(
            "tiered.records._native",
            sorted(glob("tiered/records/c/*.c")),
            depends=sorted(glob("tiered/records/c/*.h")),
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            extra_compile_args=["-O3", "-fvisibility=hidden"],
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
