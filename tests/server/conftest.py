"""
The server's C parts, built before the tests that import them.
"""

from server.build import BuildError, build, find_parts

for part in find_parts():
    try:
        build(part)
    except BuildError as error:
        # Tests that need it then fail by name; those of pure parts still run.
        print(f"tests: {error}")
