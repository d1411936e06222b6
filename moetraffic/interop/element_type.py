"""Map element type names of torch profiles to torch dtypes and element sizes.

torch writes ``Float`` (c10's ScalarType) in the attributes of a collective, and
``float`` or ``c10::BFloat16`` (the C++ type) in the types of an operator's inputs.
"""

from __future__ import annotations

import re

NUMBERED = re.compile(  # torch dtypes whose names contain their bits
    r"(?:b?float16|float32|float64|float8_(?:e4m3fn|e5m2|e4m3fnuz|e5m2fnuz|e8m0fnu)"
    r"|u?int(?:8|16|32|64)|complex64|complex128)"
)
NAMES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}


def element_type(name: str) -> tuple[str, int] | None:
    """Return torch's name and element size of a type, None if unknown.

    >>> element_type("Tensor(c10::BFloat16)"), element_type("long int")
    (('bfloat16', 2), ('int64', 8))
    """
    plain = name.strip()
    if plain.startswith("Tensor(") and plain.endswith(")"):
        plain = plain[len("Tensor(") : -1]
    plain = plain.removeprefix("c10::").removeprefix("torch.").lower()
    plain = NAMES.get(plain, plain)
    if plain == "bool":
        return plain, 1
    bits = re.search(r"\d+", plain) if NUMBERED.fullmatch(plain) else None
    return (plain, int(bits[0]) // 8) if bits else None
