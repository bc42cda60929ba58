from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FLOAT64: _ClassVar[Precision]
    FLOAT32: _ClassVar[Precision]
    INT8: _ClassVar[Precision]
    INT16: _ClassVar[Precision]

class Work(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DUAL_ASCENT: _ClassVar[Work]
    GRADIENT: _ClassVar[Work]
FLOAT64: Precision
FLOAT32: Precision
INT8: Precision
INT16: Precision
DUAL_ASCENT: Work
GRADIENT: Work

class Tensor(_message.Message):
    __slots__ = ("shape", "precision", "data", "step", "base", "weights", "shift", "constant", "reported", "share")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    precision: Precision
    data: bytes
    step: float
    base: int
    weights: _containers.RepeatedScalarFieldContainer[float]
    shift: float
    constant: float
    reported: int
    share: int
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., precision: _Optional[_Union[Precision, str]] = ..., data: _Optional[bytes] = ..., step: _Optional[float] = ..., base: _Optional[int] = ..., weights: _Optional[_Iterable[float]] = ..., shift: _Optional[float] = ..., constant: _Optional[float] = ..., reported: _Optional[int] = ..., share: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("oldest", "newest", "network", "software", "node", "incarnation", "pending_round", "round", "epoch", "membership", "prepared", "process")
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PENDING_ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    oldest: int
    newest: int
    network: str
    software: str
    node: int
    incarnation: int
    pending_round: int
    round: int
    epoch: str
    membership: int
    prepared: bool
    process: str
    def __init__(self, oldest: _Optional[int] = ..., newest: _Optional[int] = ..., network: _Optional[str] = ..., software: _Optional[str] = ..., node: _Optional[int] = ..., incarnation: _Optional[int] = ..., pending_round: _Optional[int] = ..., round: _Optional[int] = ..., epoch: _Optional[str] = ..., membership: _Optional[int] = ..., prepared: bool = ..., process: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("algorithm", "options", "classes", "features", "least_steps")
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LEAST_STEPS_FIELD_NUMBER: _ClassVar[int]
    algorithm: str
    options: str
    classes: _containers.RepeatedScalarFieldContainer[str]
    features: int
    least_steps: int
    def __init__(self, algorithm: _Optional[str] = ..., options: _Optional[str] = ..., classes: _Optional[_Iterable[str]] = ..., features: _Optional[int] = ..., least_steps: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "epoch", "job", "scaling", "incarnation", "allowed", "revoked", "anchor", "verdict", "centring", "place", "noising")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CENTRING_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    NOISING_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    epoch: str
    job: Job
    scaling: Scaling
    incarnation: int
    allowed: _containers.RepeatedScalarFieldContainer[int]
    revoked: _containers.RepeatedScalarFieldContainer[str]
    anchor: Anchor
    verdict: Verdict
    centring: Centring
    place: Place
    noising: Noising
    def __init__(self, protocol: _Optional[int] = ..., epoch: _Optional[str] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., scaling: _Optional[_Union[Scaling, _Mapping]] = ..., incarnation: _Optional[int] = ..., allowed: _Optional[_Iterable[int]] = ..., revoked: _Optional[_Iterable[str]] = ..., anchor: _Optional[_Union[Anchor, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., centring: _Optional[_Union[Centring, _Mapping]] = ..., place: _Optional[_Union[Place, _Mapping]] = ..., noising: _Optional[_Union[Noising, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("round", "factor", "until", "incarnation")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    round: int
    factor: float
    until: int
    incarnation: int
    def __init__(self, round: _Optional[int] = ..., factor: _Optional[float] = ..., until: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Anchor(_message.Message):
    __slots__ = ("cloud_round", "task", "center", "lam", "origin", "work")
    CLOUD_ROUND_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    CENTER_FIELD_NUMBER: _ClassVar[int]
    LAM_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    cloud_round: int
    task: int
    center: Tensor
    lam: float
    origin: Tensor
    work: Work
    def __init__(self, cloud_round: _Optional[int] = ..., task: _Optional[int] = ..., center: _Optional[_Union[Tensor, _Mapping]] = ..., lam: _Optional[float] = ..., origin: _Optional[_Union[Tensor, _Mapping]] = ..., work: _Optional[_Union[Work, str]] = ...) -> None: ...

class WorkOrder(_message.Message):
    __slots__ = ("round", "terminal", "model", "scale", "local_steps", "verdict", "partners", "work")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PARTNERS_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    round: int
    terminal: int
    model: Tensor
    scale: float
    local_steps: int
    verdict: Verdict
    partners: Partners
    work: Work
    def __init__(self, round: _Optional[int] = ..., terminal: _Optional[int] = ..., model: _Optional[_Union[Tensor, _Mapping]] = ..., scale: _Optional[float] = ..., local_steps: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., partners: _Optional[_Union[Partners, _Mapping]] = ..., work: _Optional[_Union[Work, str]] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("round", "terminal", "delta", "gains", "profile")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    GAINS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    round: int
    terminal: int
    delta: Tensor
    gains: Tensor
    profile: Tensor
    def __init__(self, round: _Optional[int] = ..., terminal: _Optional[int] = ..., delta: _Optional[_Union[Tensor, _Mapping]] = ..., gains: _Optional[_Union[Tensor, _Mapping]] = ..., profile: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("terminal", "number", "models", "verdict", "points", "gradient", "partners", "noise")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    PARTNERS_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    number: int
    models: _containers.RepeatedCompositeFieldContainer[Tensor]
    verdict: Verdict
    points: Tensor
    gradient: bool
    partners: Partners
    noise: float
    def __init__(self, terminal: _Optional[int] = ..., number: _Optional[int] = ..., models: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., points: _Optional[_Union[Tensor, _Mapping]] = ..., gradient: bool = ..., partners: _Optional[_Union[Partners, _Mapping]] = ..., noise: _Optional[float] = ...) -> None: ...

class Sums(_message.Message):
    __slots__ = ("terminal", "number", "losses", "dual", "gradient", "residual")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    DUAL_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    number: int
    losses: Tensor
    dual: Tensor
    gradient: Tensor
    residual: Tensor
    def __init__(self, terminal: _Optional[int] = ..., number: _Optional[int] = ..., losses: _Optional[_Union[Tensor, _Mapping]] = ..., dual: _Optional[_Union[Tensor, _Mapping]] = ..., gradient: _Optional[_Union[Tensor, _Mapping]] = ..., residual: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("cloud_round", "task", "round", "v", "n_samples", "membership")
    CLOUD_ROUND_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    V_FIELD_NUMBER: _ClassVar[int]
    N_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    cloud_round: int
    task: int
    round: int
    v: Tensor
    n_samples: int
    membership: int
    def __init__(self, cloud_round: _Optional[int] = ..., task: _Optional[int] = ..., round: _Optional[int] = ..., v: _Optional[_Union[Tensor, _Mapping]] = ..., n_samples: _Optional[int] = ..., membership: _Optional[int] = ...) -> None: ...

class StationSums(_message.Message):
    __slots__ = ("task", "round", "losses", "dual", "n_samples", "membership", "gradient", "residual", "worst", "absent")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    DUAL_FIELD_NUMBER: _ClassVar[int]
    N_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    WORST_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    task: int
    round: int
    losses: Tensor
    dual: Tensor
    n_samples: int
    membership: int
    gradient: Tensor
    residual: Tensor
    worst: Tensor
    absent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, task: _Optional[int] = ..., round: _Optional[int] = ..., losses: _Optional[_Union[Tensor, _Mapping]] = ..., dual: _Optional[_Union[Tensor, _Mapping]] = ..., n_samples: _Optional[int] = ..., membership: _Optional[int] = ..., gradient: _Optional[_Union[Tensor, _Mapping]] = ..., residual: _Optional[_Union[Tensor, _Mapping]] = ..., worst: _Optional[_Union[Tensor, _Mapping]] = ..., absent: _Optional[_Iterable[int]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("terminal", "incarnation", "n_samples", "share", "mean_weight")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    N_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MEAN_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    incarnation: int
    n_samples: int
    share: Tensor
    mean_weight: float
    def __init__(self, terminal: _Optional[int] = ..., incarnation: _Optional[int] = ..., n_samples: _Optional[int] = ..., share: _Optional[_Union[Tensor, _Mapping]] = ..., mean_weight: _Optional[float] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("terminal", "verdict")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    verdict: Verdict
    def __init__(self, terminal: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("terminal", "incarnation", "share")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    incarnation: int
    share: Tensor
    def __init__(self, terminal: _Optional[int] = ..., incarnation: _Optional[int] = ..., share: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("terminal", "incarnation", "destination")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    incarnation: int
    destination: Place
    def __init__(self, terminal: _Optional[int] = ..., incarnation: _Optional[int] = ..., destination: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class MomentsReport(_message.Message):
    __slots__ = ("sender", "count", "mean", "spread")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    sender: int
    count: int
    mean: Tensor
    spread: Tensor
    def __init__(self, sender: _Optional[int] = ..., count: _Optional[int] = ..., mean: _Optional[_Union[Tensor, _Mapping]] = ..., spread: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class FeatureMapping(_message.Message):
    __slots__ = ("features", "mean", "scale", "unit", "quantiles", "seed")
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    QUANTILES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    features: bytes
    mean: Tensor
    scale: Tensor
    unit: bool
    quantiles: Tensor
    seed: int
    def __init__(self, features: _Optional[bytes] = ..., mean: _Optional[_Union[Tensor, _Mapping]] = ..., scale: _Optional[_Union[Tensor, _Mapping]] = ..., unit: bool = ..., quantiles: _Optional[_Union[Tensor, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class MomentsRequest(_message.Message):
    __slots__ = ("mapping",)
    MAPPING_FIELD_NUMBER: _ClassVar[int]
    mapping: FeatureMapping
    def __init__(self, mapping: _Optional[_Union[FeatureMapping, _Mapping]] = ...) -> None: ...

class RowProbe(_message.Message):
    __slots__ = ("labels", "about", "partners", "mapping")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    PARTNERS_FIELD_NUMBER: _ClassVar[int]
    MAPPING_FIELD_NUMBER: _ClassVar[int]
    labels: bool
    about: Tensor
    partners: Partners
    mapping: FeatureMapping
    def __init__(self, labels: bool = ..., about: _Optional[_Union[Tensor, _Mapping]] = ..., partners: _Optional[_Union[Partners, _Mapping]] = ..., mapping: _Optional[_Union[FeatureMapping, _Mapping]] = ...) -> None: ...

class ShareProbe(_message.Message):
    __slots__ = ("terminal", "number", "verdict", "partners")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PARTNERS_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    number: int
    verdict: Verdict
    partners: Partners
    def __init__(self, terminal: _Optional[int] = ..., number: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., partners: _Optional[_Union[Partners, _Mapping]] = ...) -> None: ...

class Scaling(_message.Message):
    __slots__ = ("mean", "scale", "unit", "mapping")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    MAPPING_FIELD_NUMBER: _ClassVar[int]
    mean: Tensor
    scale: Tensor
    unit: bool
    mapping: FeatureMapping
    def __init__(self, mean: _Optional[_Union[Tensor, _Mapping]] = ..., scale: _Optional[_Union[Tensor, _Mapping]] = ..., unit: bool = ..., mapping: _Optional[_Union[FeatureMapping, _Mapping]] = ...) -> None: ...

class LabelsReport(_message.Message):
    __slots__ = ("sender", "sums")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    sender: int
    sums: Tensor
    def __init__(self, sender: _Optional[int] = ..., sums: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Centring(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: float
    def __init__(self, level: _Optional[float] = ...) -> None: ...

class Noising(_message.Message):
    __slots__ = ("clip", "noise", "delta")
    CLIP_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    clip: float
    noise: float
    delta: float
    def __init__(self, clip: _Optional[float] = ..., noise: _Optional[float] = ..., delta: _Optional[float] = ...) -> None: ...

class ColumnsReport(_message.Message):
    __slots__ = ("sender", "counts", "sums", "vocabulary")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    sender: int
    counts: Tensor
    sums: Tensor
    vocabulary: bytes
    def __init__(self, sender: _Optional[int] = ..., counts: _Optional[_Union[Tensor, _Mapping]] = ..., sums: _Optional[_Union[Tensor, _Mapping]] = ..., vocabulary: _Optional[bytes] = ...) -> None: ...

class ColumnsAgreed(_message.Message):
    __slots__ = ("fill", "gaps", "vocabulary")
    FILL_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    fill: Tensor
    gaps: Tensor
    vocabulary: bytes
    def __init__(self, fill: _Optional[_Union[Tensor, _Mapping]] = ..., gaps: _Optional[_Union[Tensor, _Mapping]] = ..., vocabulary: _Optional[bytes] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("terminal", "public", "proof", "group")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    public: bytes
    proof: bytes
    group: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, terminal: _Optional[int] = ..., public: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., group: _Optional[_Iterable[int]] = ...) -> None: ...

class Circle(_message.Message):
    __slots__ = ("slot", "keys", "groups")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    keys: _containers.RepeatedCompositeFieldContainer[Key]
    groups: bytes
    def __init__(self, slot: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[Key, _Mapping]]] = ..., groups: _Optional[bytes] = ...) -> None: ...

class Deal(_message.Message):
    __slots__ = ("terminal", "slot", "shares", "backup")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    slot: int
    shares: bytes
    backup: bytes
    def __init__(self, terminal: _Optional[int] = ..., slot: _Optional[int] = ..., shares: _Optional[bytes] = ..., backup: _Optional[bytes] = ...) -> None: ...

class Partners(_message.Message):
    __slots__ = ("slot", "everyone", "seats", "shares")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    EVERYONE_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    slot: int
    everyone: bytes
    seats: bytes
    shares: bytes
    def __init__(self, slot: _Optional[int] = ..., everyone: _Optional[bytes] = ..., seats: _Optional[bytes] = ..., shares: _Optional[bytes] = ...) -> None: ...

class Masked(_message.Message):
    __slots__ = ("terminal", "slot", "words", "next")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    slot: int
    words: bytes
    next: Deal
    def __init__(self, terminal: _Optional[int] = ..., slot: _Optional[int] = ..., words: _Optional[bytes] = ..., next: _Optional[_Union[Deal, _Mapping]] = ...) -> None: ...

class Unmask(_message.Message):
    __slots__ = ("slot", "arrived")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    slot: int
    arrived: bytes
    def __init__(self, slot: _Optional[int] = ..., arrived: _Optional[bytes] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("terminal", "slot", "shares")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    slot: int
    shares: bytes
    def __init__(self, terminal: _Optional[int] = ..., slot: _Optional[int] = ..., shares: _Optional[bytes] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("station", "address")
    STATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    station: int
    address: str
    def __init__(self, station: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Trial(_message.Message):
    __slots__ = ("number", "model", "partners")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARTNERS_FIELD_NUMBER: _ClassVar[int]
    number: int
    model: Tensor
    partners: Partners
    def __init__(self, number: _Optional[int] = ..., model: _Optional[_Union[Tensor, _Mapping]] = ..., partners: _Optional[_Union[Partners, _Mapping]] = ...) -> None: ...

class Tally(_message.Message):
    __slots__ = ("number", "counts", "squares", "rows")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SQUARES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    number: int
    counts: Tensor
    squares: float
    rows: int
    def __init__(self, number: _Optional[int] = ..., counts: _Optional[_Union[Tensor, _Mapping]] = ..., squares: _Optional[float] = ..., rows: _Optional[int] = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Declined(_message.Message):
    __slots__ = ("round", "reason", "local_steps")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    round: int
    reason: str
    local_steps: int
    def __init__(self, round: _Optional[int] = ..., reason: _Optional[str] = ..., local_steps: _Optional[int] = ...) -> None: ...

class TerminalUp(_message.Message):
    __slots__ = ("hello", "update", "sums", "join", "leave", "moments", "tally", "scaled", "labels", "centred", "withdraw", "rest", "declined", "key", "deal", "masked", "opened", "noised", "seconds")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    TALLY_FIELD_NUMBER: _ClassVar[int]
    SCALED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CENTRED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    DECLINED_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DEAL_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    NOISED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    update: Update
    sums: Sums
    join: Join
    leave: Leave
    moments: MomentsReport
    tally: Tally
    scaled: Nothing
    labels: LabelsReport
    centred: Nothing
    withdraw: Nothing
    rest: Nothing
    declined: Declined
    key: Key
    deal: Deal
    masked: Masked
    opened: Opened
    noised: Nothing
    seconds: float
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., update: _Optional[_Union[Update, _Mapping]] = ..., sums: _Optional[_Union[Sums, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., moments: _Optional[_Union[MomentsReport, _Mapping]] = ..., tally: _Optional[_Union[Tally, _Mapping]] = ..., scaled: _Optional[_Union[Nothing, _Mapping]] = ..., labels: _Optional[_Union[LabelsReport, _Mapping]] = ..., centred: _Optional[_Union[Nothing, _Mapping]] = ..., withdraw: _Optional[_Union[Nothing, _Mapping]] = ..., rest: _Optional[_Union[Nothing, _Mapping]] = ..., declined: _Optional[_Union[Declined, _Mapping]] = ..., key: _Optional[_Union[Key, _Mapping]] = ..., deal: _Optional[_Union[Deal, _Mapping]] = ..., masked: _Optional[_Union[Masked, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., noised: _Optional[_Union[Nothing, _Mapping]] = ..., seconds: _Optional[float] = ...) -> None: ...

class TerminalDown(_message.Message):
    __slots__ = ("welcome", "refusal", "order", "probe", "release", "goodbye", "ask_moments", "scaling", "trial", "drain", "ask_labels", "centring", "circle", "unmask", "noising", "ask_rows", "ask_share")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    ASK_MOMENTS_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ASK_LABELS_FIELD_NUMBER: _ClassVar[int]
    CENTRING_FIELD_NUMBER: _ClassVar[int]
    CIRCLE_FIELD_NUMBER: _ClassVar[int]
    UNMASK_FIELD_NUMBER: _ClassVar[int]
    NOISING_FIELD_NUMBER: _ClassVar[int]
    ASK_ROWS_FIELD_NUMBER: _ClassVar[int]
    ASK_SHARE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refusal: Refusal
    order: WorkOrder
    probe: Probe
    release: Release
    goodbye: Goodbye
    ask_moments: MomentsRequest
    scaling: Scaling
    trial: Trial
    drain: Nothing
    ask_labels: Nothing
    centring: Centring
    circle: Circle
    unmask: Unmask
    noising: Noising
    ask_rows: RowProbe
    ask_share: ShareProbe
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., order: _Optional[_Union[WorkOrder, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., ask_moments: _Optional[_Union[MomentsRequest, _Mapping]] = ..., scaling: _Optional[_Union[Scaling, _Mapping]] = ..., trial: _Optional[_Union[Trial, _Mapping]] = ..., drain: _Optional[_Union[Nothing, _Mapping]] = ..., ask_labels: _Optional[_Union[Nothing, _Mapping]] = ..., centring: _Optional[_Union[Centring, _Mapping]] = ..., circle: _Optional[_Union[Circle, _Mapping]] = ..., unmask: _Optional[_Union[Unmask, _Mapping]] = ..., noising: _Optional[_Union[Noising, _Mapping]] = ..., ask_rows: _Optional[_Union[RowProbe, _Mapping]] = ..., ask_share: _Optional[_Union[ShareProbe, _Mapping]] = ...) -> None: ...

class RoundRequest(_message.Message):
    __slots__ = ("round", "terminals", "local_steps", "deadline")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TERMINALS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    round: int
    terminals: _containers.RepeatedScalarFieldContainer[int]
    local_steps: _containers.RepeatedScalarFieldContainer[int]
    deadline: float
    def __init__(self, round: _Optional[int] = ..., terminals: _Optional[_Iterable[int]] = ..., local_steps: _Optional[_Iterable[int]] = ..., deadline: _Optional[float] = ...) -> None: ...

class Effort(_message.Message):
    __slots__ = ("terminal", "local_steps", "answered", "work_seconds", "wait_seconds", "bytes_down", "bytes_up")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    WORK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    local_steps: int
    answered: bool
    work_seconds: float
    wait_seconds: float
    bytes_down: int
    bytes_up: int
    def __init__(self, terminal: _Optional[int] = ..., local_steps: _Optional[int] = ..., answered: bool = ..., work_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., bytes_down: _Optional[int] = ..., bytes_up: _Optional[int] = ...) -> None: ...

class RoundResult(_message.Message):
    __slots__ = ("round", "efforts", "factor", "gains", "seconds", "epoch", "membership")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EFFORTS_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    GAINS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    round: int
    efforts: _containers.RepeatedCompositeFieldContainer[Effort]
    factor: float
    gains: Tensor
    seconds: float
    epoch: str
    membership: int
    def __init__(self, round: _Optional[int] = ..., efforts: _Optional[_Iterable[_Union[Effort, _Mapping]]] = ..., factor: _Optional[float] = ..., gains: _Optional[_Union[Tensor, _Mapping]] = ..., seconds: _Optional[float] = ..., epoch: _Optional[str] = ..., membership: _Optional[int] = ...) -> None: ...

class SumsRequest(_message.Message):
    __slots__ = ("models", "points", "gradient", "noise")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Tensor]
    points: Tensor
    gradient: bool
    noise: float
    def __init__(self, models: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., points: _Optional[_Union[Tensor, _Mapping]] = ..., gradient: bool = ..., noise: _Optional[float] = ...) -> None: ...

class TrialRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Tensor
    def __init__(self, model: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Metrics(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, float]
    def __init__(self, values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Seat(_message.Message):
    __slots__ = ("terminal", "n_samples", "incarnation", "connected", "withdraws", "group")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    N_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    n_samples: int
    incarnation: int
    connected: bool
    withdraws: bool
    group: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, terminal: _Optional[int] = ..., n_samples: _Optional[int] = ..., incarnation: _Optional[int] = ..., connected: bool = ..., withdraws: bool = ..., group: _Optional[_Iterable[int]] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("membership", "seats", "quarantined", "declined")
    class QuarantinedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class DeclinedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    DECLINED_FIELD_NUMBER: _ClassVar[int]
    membership: int
    seats: _containers.RepeatedCompositeFieldContainer[Seat]
    quarantined: _containers.ScalarMap[int, str]
    declined: _containers.ScalarMap[int, str]
    def __init__(self, membership: _Optional[int] = ..., seats: _Optional[_Iterable[_Union[Seat, _Mapping]]] = ..., quarantined: _Optional[_Mapping[int, str]] = ..., declined: _Optional[_Mapping[int, str]] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("terminal", "destination", "forget", "readmit")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    READMIT_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    destination: Place
    forget: bool
    readmit: bool
    def __init__(self, terminal: _Optional[int] = ..., destination: _Optional[_Union[Place, _Mapping]] = ..., forget: bool = ..., readmit: bool = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "assign", "round", "report", "sums", "moments", "scale", "models", "trial", "roster", "transfer", "labels", "centre", "hide")
    ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    HIDE_FIELD_NUMBER: _ClassVar[int]
    id: int
    assign: Anchor
    round: RoundRequest
    report: int
    sums: SumsRequest
    moments: MomentsRequest
    scale: Scaling
    models: Nothing
    trial: TrialRequest
    roster: Nothing
    transfer: Transfer
    labels: Nothing
    centre: Centring
    hide: Noising
    def __init__(self, id: _Optional[int] = ..., assign: _Optional[_Union[Anchor, _Mapping]] = ..., round: _Optional[_Union[RoundRequest, _Mapping]] = ..., report: _Optional[int] = ..., sums: _Optional[_Union[SumsRequest, _Mapping]] = ..., moments: _Optional[_Union[MomentsRequest, _Mapping]] = ..., scale: _Optional[_Union[Scaling, _Mapping]] = ..., models: _Optional[_Union[Nothing, _Mapping]] = ..., trial: _Optional[_Union[TrialRequest, _Mapping]] = ..., roster: _Optional[_Union[Nothing, _Mapping]] = ..., transfer: _Optional[_Union[Transfer, _Mapping]] = ..., labels: _Optional[_Union[Nothing, _Mapping]] = ..., centre: _Optional[_Union[Centring, _Mapping]] = ..., hide: _Optional[_Union[Noising, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "trouble", "done", "round", "report", "sums", "moments", "models", "metrics", "roster", "labels", "seconds", "bytes_down", "bytes_up", "away", "bytes_below")
    ID_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    BYTES_BELOW_FIELD_NUMBER: _ClassVar[int]
    id: int
    trouble: str
    done: Nothing
    round: RoundResult
    report: Report
    sums: StationSums
    moments: MomentsReport
    models: Tensor
    metrics: Metrics
    roster: Roster
    labels: LabelsReport
    seconds: float
    bytes_down: int
    bytes_up: int
    away: bool
    bytes_below: int
    def __init__(self, id: _Optional[int] = ..., trouble: _Optional[str] = ..., done: _Optional[_Union[Nothing, _Mapping]] = ..., round: _Optional[_Union[RoundResult, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., sums: _Optional[_Union[StationSums, _Mapping]] = ..., moments: _Optional[_Union[MomentsReport, _Mapping]] = ..., models: _Optional[_Union[Tensor, _Mapping]] = ..., metrics: _Optional[_Union[Metrics, _Mapping]] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ..., labels: _Optional[_Union[LabelsReport, _Mapping]] = ..., seconds: _Optional[float] = ..., bytes_down: _Optional[int] = ..., bytes_up: _Optional[int] = ..., away: bool = ..., bytes_below: _Optional[int] = ...) -> None: ...

class StationUp(_message.Message):
    __slots__ = ("hello", "answer", "outlook")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    OUTLOOK_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    answer: Answer
    outlook: Outlook
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., outlook: _Optional[_Union[Outlook, _Mapping]] = ...) -> None: ...

class Outlook(_message.Message):
    __slots__ = ("membership", "round", "roster", "last_error")
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    membership: int
    round: int
    roster: Roster
    last_error: str
    def __init__(self, membership: _Optional[int] = ..., round: _Optional[int] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ..., last_error: _Optional[str] = ...) -> None: ...

class StationDown(_message.Message):
    __slots__ = ("welcome", "refusal", "request", "access", "drain")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refusal: Refusal
    request: Request
    access: Access
    drain: Nothing
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., access: _Optional[_Union[Access, _Mapping]] = ..., drain: _Optional[_Union[Nothing, _Mapping]] = ...) -> None: ...

class Access(_message.Message):
    __slots__ = ("allowed", "revoked")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    allowed: _containers.RepeatedScalarFieldContainer[int]
    revoked: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, allowed: _Optional[_Iterable[int]] = ..., revoked: _Optional[_Iterable[str]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("name", "arguments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments: str
    def __init__(self, name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("trouble", "result")
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    trouble: str
    result: str
    def __init__(self, trouble: _Optional[str] = ..., result: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("trouble", "name", "data")
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    trouble: str
    name: str
    data: bytes
    def __init__(self, trouble: _Optional[str] = ..., name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Enrol(_message.Message):
    __slots__ = ("token", "request")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    token: str
    request: bytes
    def __init__(self, token: _Optional[str] = ..., request: _Optional[bytes] = ...) -> None: ...

class Enrolled(_message.Message):
    __slots__ = ("trouble", "certificate", "authorities", "settings")
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    trouble: str
    certificate: bytes
    authorities: bytes
    settings: str
    def __init__(self, trouble: _Optional[str] = ..., certificate: _Optional[bytes] = ..., authorities: _Optional[bytes] = ..., settings: _Optional[str] = ...) -> None: ...

class TerminalFile(_message.Message):
    __slots__ = ("network", "epoch", "job", "scaling", "alpha", "pending", "update", "last_round", "phase", "incarnation", "residual", "sent_residual", "place", "rows", "rows_digest", "centring", "secret", "day", "steps_of_day", "releases", "noising", "privacy", "group", "history", "certified", "mapped")
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    SENT_RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CENTRING_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    DAY_FIELD_NUMBER: _ClassVar[int]
    STEPS_OF_DAY_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    NOISING_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    MAPPED_FIELD_NUMBER: _ClassVar[int]
    network: str
    epoch: str
    job: Job
    scaling: Scaling
    alpha: Tensor
    pending: Tensor
    update: Update
    last_round: int
    phase: str
    incarnation: int
    residual: Tensor
    sent_residual: Tensor
    place: Place
    rows: int
    rows_digest: bytes
    centring: Centring
    secret: bytes
    day: int
    steps_of_day: int
    releases: int
    noising: Noising
    privacy: float
    group: _containers.RepeatedScalarFieldContainer[int]
    history: bytes
    certified: bytes
    mapped: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, network: _Optional[str] = ..., epoch: _Optional[str] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., scaling: _Optional[_Union[Scaling, _Mapping]] = ..., alpha: _Optional[_Union[Tensor, _Mapping]] = ..., pending: _Optional[_Union[Tensor, _Mapping]] = ..., update: _Optional[_Union[Update, _Mapping]] = ..., last_round: _Optional[int] = ..., phase: _Optional[str] = ..., incarnation: _Optional[int] = ..., residual: _Optional[_Union[Tensor, _Mapping]] = ..., sent_residual: _Optional[_Union[Tensor, _Mapping]] = ..., place: _Optional[_Union[Place, _Mapping]] = ..., rows: _Optional[int] = ..., rows_digest: _Optional[bytes] = ..., centring: _Optional[_Union[Centring, _Mapping]] = ..., secret: _Optional[bytes] = ..., day: _Optional[int] = ..., steps_of_day: _Optional[int] = ..., releases: _Optional[int] = ..., noising: _Optional[_Union[Noising, _Mapping]] = ..., privacy: _Optional[float] = ..., group: _Optional[_Iterable[int]] = ..., history: _Optional[bytes] = ..., certified: _Optional[bytes] = ..., mapped: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MemberFile(_message.Message):
    __slots__ = ("terminal", "n_samples", "share", "incarnation", "applied_round", "applied_factor", "departed", "mean_weight")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    N_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_ROUND_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FACTOR_FIELD_NUMBER: _ClassVar[int]
    DEPARTED_FIELD_NUMBER: _ClassVar[int]
    MEAN_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    terminal: int
    n_samples: int
    share: Tensor
    incarnation: int
    applied_round: int
    applied_factor: float
    departed: bool
    mean_weight: float
    def __init__(self, terminal: _Optional[int] = ..., n_samples: _Optional[int] = ..., share: _Optional[_Union[Tensor, _Mapping]] = ..., incarnation: _Optional[int] = ..., applied_round: _Optional[int] = ..., applied_factor: _Optional[float] = ..., departed: bool = ..., mean_weight: _Optional[float] = ...) -> None: ...

class StationFile(_message.Message):
    __slots__ = ("network", "epoch", "job", "scaling", "U", "members", "round", "anchor", "membership", "probe", "last", "allowed", "revoked", "leaving", "centring", "quarantined", "noising", "told", "certified", "certificate")
    class LeavingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Place
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...
    class QuarantinedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    U_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    CENTRING_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    NOISING_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    network: str
    epoch: str
    job: Job
    scaling: Scaling
    U: Tensor
    members: _containers.RepeatedCompositeFieldContainer[MemberFile]
    round: int
    anchor: Anchor
    membership: int
    probe: int
    last: RoundResult
    allowed: _containers.RepeatedScalarFieldContainer[int]
    revoked: _containers.RepeatedScalarFieldContainer[str]
    leaving: _containers.MessageMap[int, Place]
    centring: Centring
    quarantined: _containers.ScalarMap[int, str]
    noising: Noising
    told: Tensor
    certified: bytes
    certificate: StationSums
    def __init__(self, network: _Optional[str] = ..., epoch: _Optional[str] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., scaling: _Optional[_Union[Scaling, _Mapping]] = ..., U: _Optional[_Union[Tensor, _Mapping]] = ..., members: _Optional[_Iterable[_Union[MemberFile, _Mapping]]] = ..., round: _Optional[int] = ..., anchor: _Optional[_Union[Anchor, _Mapping]] = ..., membership: _Optional[int] = ..., probe: _Optional[int] = ..., last: _Optional[_Union[RoundResult, _Mapping]] = ..., allowed: _Optional[_Iterable[int]] = ..., revoked: _Optional[_Iterable[str]] = ..., leaving: _Optional[_Mapping[int, Place]] = ..., centring: _Optional[_Union[Centring, _Mapping]] = ..., quarantined: _Optional[_Mapping[int, str]] = ..., noising: _Optional[_Union[Noising, _Mapping]] = ..., told: _Optional[_Union[Tensor, _Mapping]] = ..., certified: _Optional[bytes] = ..., certificate: _Optional[_Union[StationSums, _Mapping]] = ...) -> None: ...

class OpenFile(_message.Message):
    __slots__ = ("round", "digest", "ordered")
    class OrderedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    round: int
    digest: bytes
    ordered: _containers.ScalarMap[int, int]
    def __init__(self, round: _Optional[int] = ..., digest: _Optional[bytes] = ..., ordered: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("index", "kind", "text", "answers")
    class AnswersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Answer
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    kind: str
    text: str
    answers: _containers.MessageMap[int, Answer]
    def __init__(self, index: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., answers: _Optional[_Mapping[int, Answer]] = ...) -> None: ...
