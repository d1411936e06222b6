"""Map element type names of torch profiles to torch dtypes and element sizes.

torch writes ``Float`` (c10's ScalarType) in the attributes of a collective, and
``float`` or ``c10::BFloat16`` (the C++ type) in the types of an operator's inputs.
"""

from __future__ import annotations

BYTES = {  # torch dtype: bytes of an element
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}

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
    return (plain, BYTES[plain]) if plain in BYTES else None
