"""A torch whose GPU is a recorded device and whose arithmetic is the CPU's: drives a CUDA or ROCm backend without either.

    with fake_torch("mi300x") as torch:
        x = torch.ones(4, 4, device="cuda")        # x.device is cuda:0, x.numpy() raises as it would
        torch._scaled_mm(...)                       # takes float8_e4m3fnuz only, as gfx942 does

Tensors live in host memory and carry a mark that says which device they are "on"; results inherit it. What a real device refuses
is refused with the library's own kind of error: tensors of two devices in one operation, `.numpy()` of a device tensor, a device
that is not there, 8-bit floats of the other encoding, shapes and output types `_scaled_mm` does not take, library pins that do not
take on this architecture. What cannot be imitated raises NotImplementedError and says so: never a silent success.

Error texts follow torch (ScaledBlas.cpp, Context.cpp; those of CUDA were compared with an H200 under torch 2.11) and, for the wrong
8-bit encoding, what hipBLASLt answers on MI300X (HIPBLAS_STATUS_NOT_SUPPORTED) and MI355X (no valid solution).
"""

from __future__ import annotations

import contextlib
import json
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import support_fake_scaled as scaled
import torch as real
from torch.overrides import TorchFunctionMode

DEVICES = Path(__file__).parent / "data" / "devices"
E4M3 = (real.float8_e4m3fn, real.float8_e4m3fnuz)
FNUZ = (real.float8_e4m3fnuz, real.float8_e5m2fnuz)
FLOAT8 = (*E4M3, real.float8_e5m2, real.float8_e5m2fnuz)


def device_names() -> list[str]:
    return sorted(path.stem for path in DEVICES.glob("*.json"))


def device_record(name: str) -> dict[str, Any]:
    return json.loads((DEVICES / f"{name}.json").read_text(encoding="utf-8"))


def scalar_name(dtype: Any) -> str:
    """Float8_e4m3fn, BFloat16, Half: the names C++ messages use."""
    short = str(dtype).removeprefix("torch.")
    return {"bfloat16": "BFloat16", "float16": "Half", "float32": "Float", "float64": "Double"}.get(short, short.capitalize())


def mark_of(tensor: Any) -> int | None:
    return getattr(tensor, "_fake_cuda", None)


def _tensors(values: Any) -> Iterator[Any]:
    if isinstance(values, real.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))


def _marked(result: Any, index: int | None) -> Any:
    if index is not None:
        for tensor in _tensors(result):
            tensor._fake_cuda = index
    return result


# Functions that take tensors of several devices, or whose result is on the host.
_MIXES = {"copy_", "__getitem__", "__setitem__", "to", "type", "type_as", "_grad", "__set__"}
_SAME_DEVICE_EXEMPT_DIM = 0  # a zero-dimensional host tensor counts as a number


class _DeviceMode(TorchFunctionMode):
    """Intercepts every torch function of this thread: turns devices into marks and applies the device's rules."""

    def __init__(self, fake: FakeTorch) -> None:
        super().__init__()
        self.fake = fake

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self.dispatch(func, args, dict(kwargs or {}))
        if self.fake.capturing is not None and isinstance(result, real.Tensor):
            self.fake.capturing.append((func, args, dict(kwargs or {}), result))
        return result

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", str(func))
        owner = str(getattr(getattr(func, "__self__", None), "__name__", ""))
        present = [mark_of(tensor) for tensor in _tensors([args, kwargs])]
        mark = next((m for m in present if m is not None), None)
        if mark is not None:
            self.fake.answer()
        if name == "__get__":
            return self._property(owner, func, args, mark)
        handler = getattr(self, f"_do_{name.lstrip('_')}", None) if not name.startswith("__") else None
        self._check_devices(name, args, kwargs)
        if handler is not None:
            return handler(func, args, kwargs, mark)
        if "device" in kwargs:
            index = self.fake.index_of(kwargs["device"])
            if index is not None:
                kwargs["device"] = "cpu"
            kwargs.pop("pin_memory", None)
            return _marked(self._fresh(func(*args, **kwargs)), index)
        kwargs.pop("pin_memory", None)
        return _marked(func(*args, **kwargs), mark)

    @staticmethod
    def _fresh(result: Any) -> Any:
        """`torch.as_tensor(x, device=…)` may return x itself on the host, never from another device."""
        if isinstance(result, real.Tensor) and mark_of(result) is not None:
            result = result.clone()
            del result._fake_cuda
        return result

    def _check_devices(self, name: str, args: Any, kwargs: Any) -> None:
        if name in _MIXES:
            return
        found = {mark_of(t) for t in _tensors([args, kwargs]) if t.dim() != _SAME_DEVICE_EXEMPT_DIM or mark_of(t) is not None}
        if len(found) > 1:
            names = sorted("cpu" if mark is None else f"cuda:{mark}" for mark in found)
            raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, {names[1]} and {names[0]}!")

    def _property(self, owner: str, func: Any, args: Any, mark: int | None) -> Any:
        if owner == "device" and mark is not None:
            return real.device("cuda", mark)
        if owner == "is_cuda":
            return mark is not None
        return _marked(func(*args), mark)

    # movement: always a copy between host and device

    def _move(self, tensor: Any, index: int | None) -> Any:
        if mark_of(tensor) == index:
            return tensor
        result = tensor.clone()
        return _marked(result, index)

    def _do_to(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        tensor, *rest = args
        target: Any = kwargs.pop("device", None)
        if rest and isinstance(rest[0], str | real.device | int) and not isinstance(rest[0], bool):
            target, *rest = rest
        elif rest and isinstance(rest[0], real.Tensor):
            other = rest[0]
            target, rest = ("cpu" if mark_of(other) is None else f"cuda:{mark_of(other)}"), [other.dtype, *rest[1:]]
        index = self.fake.index_of(target) if target is not None else mark_of(tensor)
        result = func(tensor, *rest, **kwargs) if rest or kwargs.get("dtype") or kwargs.get("copy") else tensor
        if result is not tensor:
            _marked(result, mark_of(tensor))
        return self._move(result, index)

    def _do_cuda(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        target = args[1] if len(args) > 1 else kwargs.get("device")
        return self._move(args[0], self.fake.index_of("cuda" if target is None else target))

    def _do_cpu(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        return self._move(args[0], None)

    def _do_numpy(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        if mark is not None:
            raise TypeError(
                f"can't convert cuda:{mark} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
            )
        return func(*args, **kwargs)

    def _do_pin_memory(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        if mark is not None:
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
        return args[0].clone()

    def _do_record_stream(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> None:
        return None

    def _do_copy_(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        own = mark_of(args[0])
        return _marked(func(*args, **kwargs), own)

    # products

    def _do_mm(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        return self._product(func, args, kwargs, mark)

    _do_bmm = _do_addmm = _do_baddbmm = _do_mm

    def _product(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        args = list(args)
        out_dtype = kwargs.pop("out_dtype", None)
        if out_dtype is None and args and isinstance(args[-1], real.dtype):
            out_dtype = args.pop()
        if out_dtype is None or mark is None:
            if out_dtype is not None:
                kwargs["out_dtype"] = out_dtype
            return _marked(func(*args, **kwargs), mark)
        if not self.fake.takes_out_dtype:
            raise RuntimeError(f"{func.__name__}: out_dtype is not available in this build")
        inputs = {tensor.dtype for tensor in args}
        if not (inputs <= {real.float16, real.bfloat16} and out_dtype == real.float32) and inputs != {out_dtype}:
            raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
        return _marked(func(*(tensor.to(out_dtype) for tensor in args), **kwargs), mark)

    def _do_scaled_mm(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        if mark is None:
            return func(*args, **kwargs)
        names = ("a", "b", "scale_a", "scale_b", "bias", "scale_result", "out_dtype", "use_fast_accum")
        given = {**dict(zip(names, args, strict=False)), **{{"self": "a", "mat2": "b"}.get(k, k): v for k, v in kwargs.items()}}
        out = given.pop("out", None)
        found = _marked(self.fake.scaled_mm(**given), mark)
        return found if out is None else out.copy_(found)

    def _do_scaled_mm_v2(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        return func(*args, **kwargs) if mark is None else _marked(scaled.scaled_mm_v2(self.fake, *args, **kwargs), mark)

    def _do_scaled_grouped_mm(self, func: Any, args: Any, kwargs: Any, mark: int | None) -> Any:
        return func(*args, **kwargs) if mark is None else _marked(scaled.scaled_grouped_mm(self.fake, *args, **kwargs), mark)


class _Proxy(types.ModuleType):
    """A namespace over a real one: own attributes first, then the real ones; assignments to unknown names reach the real one."""

    def __init__(self, target: Any, own: dict[str, Any], hidden: frozenset[str] = frozenset()) -> None:
        super().__init__(getattr(target, "__name__", "fake"))
        self.__dict__.update(_target=target, _own=own, _hidden=hidden)

    def __getattr__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        if name in self._hidden:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            self._own[name] = value
        elif name in self._hidden:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        else:
            setattr(self._target, name, value)


class Properties:
    """What get_device_properties returns: the recorded fields and no others."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)


class Event:
    def __init__(self, **options: Any) -> None:
        self.options = options

    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        if not (self.options.get("enable_timing") and end.options.get("enable_timing")):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return 1.0


class Stream(contextlib.AbstractContextManager["Stream"]):
    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device, self.priority = device, priority

    def __exit__(self, *exception: object) -> None: ...
    def synchronize(self) -> None: ...
    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or Event()


DEFAULT_STREAM = Stream()


class Graph:
    """A captured graph: the functions called meanwhile, called again on `replay` into the tensors they gave."""

    def __init__(self, fake: FakeTorch) -> None:
        self.fake, self.calls = fake, []

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            fresh = self.fake.mode.dispatch(func, args, dict(kwargs))
            if fresh is not result:
                with real._C.DisableTorchFunction(), real.no_grad():
                    result.copy_(fresh)


@contextlib.contextmanager
def _capture(graph: Graph, capture_error_mode: str) -> Iterator[None]:
    graph.fake.__dict__["capturing"] = graph.calls
    try:
        yield
    finally:
        graph.fake.__dict__["capturing"] = None


class FakeTorch(_Proxy):
    """The namespace. `record` is a file of data/devices; `version`, `hip` override the recorded ones.

    Releases before 2.9 have no float32 precision per operation, before 2.10 one value per reduction switch: those names are
    hidden, so that code sees the interface of its release.
    """

    def __init__(
        self, record: dict[str, Any], *, count: int = 1, version: str | None = None, hip: str | None = None,
        takes_out_dtype: bool | None = None,
    ) -> None:  # fmt: skip
        self.__dict__["record"] = record
        self.__dict__["count"] = count
        properties = dict(record["properties"])
        vendor = record["vendor"]
        release = version or record["torch"]["version"]
        numbers = tuple(int(part) for part in release.split(".")[:2])
        rocm = hip or record["torch"]["hip"]
        build = "rocm" + ".".join(rocm.split(".")[:2]) if vendor == "amd" else "cu" + record["torch"]["cuda"].replace(".", "")
        arch = properties["gcnArchName"].split(":")[0] if vendor == "amd" else f"sm_{properties['major']}{properties['minor']}"
        self.__dict__.update(vendor=vendor, arch=arch, current=0, lost="", _blas=None, capturing=None)
        # documented for CUDA since 2.8; the ROCm build has it in source only
        self.__dict__["takes_out_dtype"] = (vendor == "nvidia" and numbers >= (2, 8)) if takes_out_dtype is None else takes_out_dtype
        self.__dict__["rocm"] = tuple(int(part) for part in rocm.split(".")[:2]) if vendor == "amd" else None
        hidden = frozenset({"_get_fp32_precision_getter", "_set_fp32_precision_setter"} if numbers < (2, 9) else ())
        c = _Proxy(real._C, {"_get_blas_default_backend": lambda: self._resolved_default()}, hidden)
        backends_cuda = _Proxy(
            real.backends.cuda,
            {
                "preferred_blas_library": self._preferred_blas,
                "matmul": _Matmul(numbers),
                "is_built": lambda: True,
                "cublas_workspace_size": lambda: 32 << 20,
                "cublaslt_workspace_size": lambda: 76 << 20,
            },
        )
        cudnn = _Proxy(real.backends.cudnn, {"version": self._dnn_version})
        super().__init__(
            real,
            {
                "__version__": f"{release}+{build}",
                "version": types.SimpleNamespace(cuda=record["torch"]["cuda"], hip=rocm, git_version="0" * 40, debug=False),
                "_C": c,
                "backends": _Proxy(real.backends, {"cuda": backends_cuda, "cudnn": cudnn}),
                "cuda": self._cuda(Properties(properties)),
                "Generator": _no_generator,
            },
        )

    # device

    def lose(self, text: str) -> None:
        """From now on every call to the device raises this, as after an illegal access."""
        self.__dict__["lost"] = text

    def answer(self) -> None:
        if self.lost:
            raise real.AcceleratorError(self.lost)

    def index_of(self, device: Any) -> int | None:
        """Index of a CUDA device, None for the host; raises for a device that is not there."""
        chosen = real.device("cuda", device) if isinstance(device, int) else real.device(device)
        if chosen.type == "cpu":
            return None
        index = self.current if chosen.index is None else chosen.index
        if chosen.type != "cuda" or index >= self.count:
            raise real.AcceleratorError(f"{'CUDA' if self.vendor == 'nvidia' else 'HIP'} error: invalid device ordinal")
        return index

    def _cuda(self, properties: Properties) -> Any:
        def checked(device: Any = None) -> int:
            index = self.index_of("cuda" if device is None else device)
            if index is None:
                raise ValueError(f"Expected a cuda device, but got: {device}")
            return index

        def of_device(value: Any) -> Callable[..., Any]:
            def read(device: Any = None) -> Any:
                checked(device)
                return value

            return read

        def set_device(device: Any) -> None:
            self.__dict__["current"] = checked(device)

        version = (2, 27, 3)
        tunable = _Proxy(
            real.cuda.tunable,
            {
                "is_enabled": lambda: self.__dict__.get("tunable", False),
                "tuning_is_enabled": lambda: True,
                "get_validators": self._validators,
                "enable": lambda value=True: self.__dict__.__setitem__("tunable", value),
            },
        )
        return _Proxy(
            real.cuda,
            {
                "is_available": lambda: True, "is_initialized": lambda: True, "init": lambda: None, "device_count": lambda: self.count,
                "current_device": lambda: self.current, "set_device": set_device, "device": lambda device: contextlib.nullcontext(),
                "get_device_properties": of_device(properties), "get_device_name": of_device(properties.name),
                "get_device_capability": of_device((properties.major, properties.minor)),
                "get_arch_list": lambda: [self.arch], "is_bf16_supported": lambda including_emulation=True: self._bf16(properties),
                "is_tf32_supported": lambda: self._tf32(properties),
                "synchronize": lambda device=None: self.answer(), "empty_cache": lambda: None, "ipc_collect": lambda: None,
                "memory_allocated": lambda device=None: 0, "max_memory_allocated": lambda device=None: 0,
                "memory_reserved": lambda device=None: 0, "reset_peak_memory_stats": lambda device=None: None,
                "mem_get_info": lambda device=None: (properties.total_memory, properties.total_memory),
                "Event": Event, "Stream": Stream, "stream": lambda stream: contextlib.nullcontext(stream),
                "CUDAGraph": lambda: Graph(self), "graph": _capture,
                "current_stream": lambda device=None: DEFAULT_STREAM, "default_stream": lambda device=None: DEFAULT_STREAM,
                "manual_seed": lambda seed: None, "manual_seed_all": lambda seed: None, "tunable": tunable,
                "nccl": types.SimpleNamespace(version=lambda: version),
            },
        )  # fmt: skip

    def _bf16(self, properties: Properties) -> bool:
        return self.vendor == "amd" or properties.major >= 8

    def _tf32(self, properties: Properties) -> bool:
        return self.arch.startswith(("gfx94", "gfx95")) if self.vendor == "amd" else properties.major >= 8

    def _dnn_version(self) -> int:
        return 3_005_000 if self.vendor == "amd" else 91_200

    def _validators(self) -> list[tuple[str, str]]:
        if self.vendor == "nvidia":
            return [("PT_VERSION", "2.13.0")]
        return [
            ("PT_VERSION", "2.13.0"), ("ROCM_VERSION", "7.2.0.0-53211-abcdef0"), ("HIPBLASLT_VERSION", "100200-bf2c3184"),
            ("ROCBLAS_VERSION", "5.2.0-72e57364-dirty"), ("GCN_ARCH_NAME", self.record["properties"]["gcnArchName"]),
        ]  # fmt: skip

    # which library computes a product

    def _lt_archs(self) -> set[str]:
        return {"gfx90a", "gfx942", "gfx1100", "gfx1101", "gfx1200", "gfx1201"} | ({"gfx950"} if self.rocm >= (6, 5) else set())

    def _resolved_default(self) -> Any:
        kind = real._C._BlasBackend
        if self.vendor == "nvidia":
            return kind.Cublas
        preferred = {"gfx90a", "gfx942", "gfx1200", "gfx1201"} | ({"gfx950"} if self.rocm >= (7, 0) else set())
        return kind.Cublaslt if self.arch in preferred else kind.Cublas

    def _preferred_blas(self, backend: Any = None) -> Any:
        kind = real._C._BlasBackend
        names = {"default": kind.Default, "cublas": kind.Cublas, "hipblas": kind.Cublas, "cublaslt": kind.Cublaslt,
                 "hipblaslt": kind.Cublaslt, "ck": kind.Ck}  # fmt: skip
        if isinstance(backend, str):
            if backend not in names:
                raise RuntimeError(f"Unknown input value. Choose from: {', '.join(names)}.")
            backend = names[backend]
        if backend == kind.Ck and self.vendor == "amd" and self.arch not in ("gfx90a", "gfx942", "gfx950"):
            raise RuntimeError(
                "Cannot set preferred blas backend to CK since following conditions are not true: "
                "architecture supported for CK: 0, PyTorch built with CK GEMM support: 1"
            )
        if backend is not None:
            self.__dict__["_blas"] = backend
        if self._blas in (None, kind.Default):
            self.__dict__["_blas"] = self._resolved_default()
        if self._blas == kind.Cublaslt and self.vendor == "amd" and self.arch not in self._lt_archs():
            warnings.warn("Attempting to use hipBLASLt on an unsupported architecture! Overriding blas backend to hipblas", stacklevel=2)
            self.__dict__["_blas"] = kind.Cublas
        return self._blas

    # 8-bit products

    def scaled_mm_allowed(self) -> bool:
        if self.vendor == "nvidia":
            capability = (self.record["properties"]["major"], self.record["properties"]["minor"])
            return capability >= (9, 0) or capability == (8, 9)
        since = {"gfx942": (0, 0), "gfx1200": (6, 3), "gfx1201": (6, 3), "gfx950": (6, 5), "gfx1250": (7, 14)}
        return self.arch in since and self.rocm >= since[self.arch]

    def scaled_mm(
        self, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, scale_result: Any = None, out_dtype: Any = None,
        use_fast_accum: bool = False,
    ) -> Any:  # fmt: skip
        """torch._scaled_mm of this device: its refusals, then the product in float32 from the decoded operands."""
        out_dtype = out_dtype or a.dtype
        m, k, n = a.shape[0], a.shape[1], b.shape[1]
        if not self.scaled_mm_allowed():
            raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+")
        if k != b.shape[0]:
            raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({m}x{k} and {b.shape[0]}x{n})")
        recipe = self._recipe(a, b, scale_a, scale_b)
        if k % 16:
            raise RuntimeError(f"Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: ({m}x{k}).")
        if n % 16:
            raise RuntimeError(f"mat2 shape ({k}x{n}) must be divisible by 16")
        for which, tensor in (("mat1", a), ("mat2", b)):
            if tensor.dtype not in FLOAT8:
                raise RuntimeError(f"Expected {which} to be Float8 or Float4_x2 matrix got {scalar_name(tensor.dtype)}")
        self._check_bias(bias, out_dtype, n)
        if self.vendor == "nvidia":
            self._check_nvidia(a, b, recipe)
        else:
            self._check_amd(a, b, recipe, out_dtype)
        if recipe not in ("tensorwise", "rowwise"):
            raise NotImplementedError(f"this fake device has no arithmetic for scales of the recipe {recipe}")
        product = (a.to(real.float32) @ b.to(real.float32)) * (scale_a * scale_b)
        if bias is not None:
            product = product + bias.to(real.float32)
        if out_dtype in FLOAT8:
            limit = real.finfo(out_dtype).max
            product = (product * scale_result if scale_result is not None else product).clamp(-limit, limit)
        return product.to(out_dtype)

    def _recipe(self, a: Any, b: Any, scale_a: Any, scale_b: Any) -> str:
        if scale_a.dtype == scale_b.dtype == real.float32:
            if scale_a.numel() == scale_b.numel() == 1:
                return "tensorwise"
            if tuple(scale_a.shape) == (a.shape[0], 1) and tuple(scale_b.shape) == (1, b.shape[1]):
                if scale_a.is_contiguous() and scale_b.t().is_contiguous():
                    return "rowwise"
            elif scale_a.dim() == scale_b.dim() == 2 and scale_a.shape[1] == -(-a.shape[1] // 128) == scale_b.shape[0]:
                return "blocks of 128"
        elif scale_a.dtype == scale_b.dtype == getattr(real, "float8_e8m0fnu", None):
            return "blocks of 32"
        raise RuntimeError(
            "Invalid scaling configuration.\n- For TensorWise scaling, a and b should be float8, scales should be float and singletons.\n"
            f"- For RowWise scaling, a and b should be float8, scales should be float, scale_a should be ({a.shape[0]}, 1) and scale_b "
            f"should be (1, {b.shape[1]}), and both should be contiguous.\n"
            f"Got a.dtype()={scalar_name(a.dtype)}, scale_a.dtype()={scalar_name(scale_a.dtype)}, scale_a.size()={list(scale_a.shape)}"
        )

    def check_encoding(self, a: Any, b: Any) -> None:
        """Refuse 8-bit floats of another device's encoding, in the library's words."""
        wrong = [t.dtype for t in (a, b) if t.dtype in FLOAT8 and (t.dtype in FNUZ) != (self.arch == "gfx942")]
        if wrong and self.vendor == "nvidia":
            raise RuntimeError(
                f"INTERNAL ASSERT FAILED at CUDADataType.h: Cannot convert ScalarType {scalar_name(wrong[0])} to cudaDataType."
            )
        if wrong and self.arch == "gfx942":
            raise RuntimeError("CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling `hipblasLtMatmulAlgoGetHeuristic`")
        if wrong:
            raise RuntimeError("could not find valid hipblaslt solution")

    def _check_bias(self, bias: Any, out_dtype: Any, n: int) -> None:
        if bias is None:
            return
        if bias.numel() != n:
            raise RuntimeError(f"Bias must be size {n} but got {bias.numel()}")
        if out_dtype == real.float32:
            raise RuntimeError("Bias is not supported when out_dtype is set to Float32")
        if bias.dtype not in (real.bfloat16, real.float16):
            raise RuntimeError(f"Bias must be BFloat16 or Half, but got {scalar_name(bias.dtype)}")
        if out_dtype in (real.bfloat16, real.float16) and bias.dtype != out_dtype:
            kind = "BFloat16" if out_dtype == real.bfloat16 else "Float16"
            raise RuntimeError(f"Bias must be {kind} to compute {scalar_name(out_dtype)} output, but got {scalar_name(bias.dtype)}")

    def _check_nvidia(self, a: Any, b: Any, recipe: str) -> None:
        major = self.record["properties"]["major"]
        if a.dtype == b.dtype == real.float8_e5m2:
            raise ValueError("Multiplication of two Float8_e5m2 matrices is not supported")
        for tensor in (a, b):
            if tensor.dtype in FNUZ:
                raise RuntimeError(
                    f"INTERNAL ASSERT FAILED at CUDADataType.h: Cannot convert ScalarType {scalar_name(tensor.dtype)} to cudaDataType."
                )
        row_by_column = a.stride(1) == 1 and b.stride(0) == 1
        if major == 9 and not row_by_column:
            raise RuntimeError("Only multiplication of row-major and column-major matrices is supported by cuBLASLt")
        if recipe == "blocks of 128" and major != 9:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic`")
        if recipe == "blocks of 32" and major < 10:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic`")

    def _check_amd(self, a: Any, b: Any, recipe: str, out_dtype: Any) -> None:
        assert self.rocm is not None
        for dtype in (real.float8_e5m2, real.float8_e4m3fn):
            if dtype in (a.dtype, b.dtype) and self.rocm < (6, 5):
                raise RuntimeError(f"{scalar_name(dtype)} is only supported for ROCm 6.5 and above")
        if recipe == "rowwise":
            wanted = real.float8_e4m3fnuz if self.arch == "gfx942" else real.float8_e4m3fn
            if b.dtype != wanted:
                raise ValueError(f"Expected b.dtype() == at::k{scalar_name(wanted)}, got: {scalar_name(b.dtype)}")
            if out_dtype != real.bfloat16:
                raise ValueError(f"hipblaslt rowwise _scaled_mm only supports BFloat16 output but got {scalar_name(out_dtype)}")
        if recipe == "blocks of 32" and (self.rocm < (7, 0) or self.arch != "gfx950"):
            raise NotImplementedError("Block-wise scaling for Float8_e8m0fnu is only supported on gfx950")
        wrong = [t.dtype for t in (a, b) if (t.dtype in FNUZ) != (self.arch == "gfx942")]
        if recipe == "blocks of 128" or (wrong and self.arch != "gfx942"):
            raise RuntimeError("could not find valid hipblaslt solution")
        if wrong:
            raise RuntimeError("CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling `hipblasLtMatmulAlgoGetHeuristic`")


class _Matmul:
    """torch.backends.cuda.matmul of a release: before 2.10 one value per reduction switch, before 2.9 no fp32_precision."""

    def __init__(self, release: tuple[int, ...]) -> None:
        hidden = {"fp32_precision"} if release < (2, 9) else set()
        if release < (2, 10):
            hidden |= {f"allow_{kind}_reduced_precision_reduction_split_k" for kind in ("fp16", "bf16")}
        self.__dict__.update(release=release, hidden=hidden)

    def __getattr__(self, name: str) -> Any:
        if name in self.hidden:
            raise AttributeError("Unknown attribute " + name)
        return getattr(real.backends.cuda.matmul, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.hidden:
            raise AttributeError("Unknown attribute " + name)
        if self.release < (2, 10) and name.endswith("_reduction") and not isinstance(value, bool):
            raise TypeError(f"set {name} expects a bool, but got {type(value).__name__}")
        setattr(real.backends.cuda.matmul, name, value)


def _no_generator(device: Any = "cpu") -> Any:
    if real.device(device).type != "cpu":
        raise NotImplementedError("this fake device has no random numbers of its own")
    return real.Generator()


@contextlib.contextmanager
def fake_torch(device: str = "mi300x", **options: Any) -> Iterator[Any]:
    """The torch namespace of a recorded device (`device_names()`), for this thread, until the block ends.

    Options: count (devices), version ("2.8.0"), hip ("6.4.43480"), takes_out_dtype (mm and its like with out_dtype).
    """
    fake = FakeTorch(device_record(device), **options)
    with _DeviceMode(fake) as mode:
        fake.__dict__["mode"] = mode
        yield fake
