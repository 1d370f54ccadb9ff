"""Only what pyproject.toml cannot say: the optional C extension (an install without a compiler works and says so)."""

from glob import glob

from setuptools import Extension, setup

setup(
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
