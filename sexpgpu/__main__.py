"""`python -m sexpgpu`."""

from sexpgpu.cli.main import main

main()
