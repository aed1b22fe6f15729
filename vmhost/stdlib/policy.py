"""What a guest may use of each native module: one table, for the C core and the tests.

Each name of a native module that is not a plain constant (int, float, str, bytes, tuple, frozenset, None) is filed as
  allowed   stays as CPython made it
  gated     stays under its name, behind a check or a replacement in vmhost/isolation (gates*.c, waits.c)
  refused   stays callable, and raises PermissionDenied: the standard library looks it up while importing
  absent    is deleted from the module when it is loaded
A name that is not filed is deleted too, and fails the test of the table (tests/guest/test_sealing_policy.py). A module
that is not in the table cannot be imported. "Type.method" files a method of a native type; of a type with such entries,
all other methods are deleted. Other types are filed as a whole.

`python vmhost/stdlib/policy.py` prints the table for the C core (policy_table.h); the build writes it. Not imported
inside a VM."""


class Rules:
    """The filed names of one native module; each argument is names separated by blanks."""

    def __init__(self, allowed="", gated="", refused="", absent=""):
        self.allowed = frozenset(allowed.split())
        self.gated = frozenset(gated.split())
        self.refused = frozenset(refused.split())
        self.absent = frozenset(absent.split())

    def verdict(self, name):
        """ "allowed", "gated", "refused" or "absent"; None if not filed."""
        for verdict in ("allowed", "gated", "refused", "absent"):
            if name in getattr(self, verdict):
                return verdict
        return None


POLICY = {
    # --- the interpreter itself
    "builtins": Rules(
        allowed="""
        ArithmeticError AssertionError AttributeError BaseException BaseExceptionGroup BlockingIOError
        BrokenPipeError BufferError BytesWarning ChildProcessError ConnectionAbortedError ConnectionError
        ConnectionRefusedError ConnectionResetError DeprecationWarning EOFError Ellipsis EncodingWarning
        EnvironmentError Exception ExceptionGroup FileExistsError FileNotFoundError FloatingPointError FutureWarning
        GeneratorExit IOError ImportError ImportWarning IndentationError IndexError InterruptedError
        IsADirectoryError KeyError KeyboardInterrupt LookupError MemoryError ModuleNotFoundError NameError
        NotADirectoryError NotImplemented NotImplementedError OSError OverflowError PendingDeprecationWarning
        PermissionError ProcessLookupError PythonFinalizationError RecursionError ReferenceError ResourceWarning
        RuntimeError RuntimeWarning StopAsyncIteration StopIteration SyntaxError SyntaxWarning SystemError
        SystemExit TabError TimeoutError TypeError UnboundLocalError UnicodeDecodeError UnicodeEncodeError
        UnicodeError UnicodeTranslateError UnicodeWarning UserWarning ValueError Warning ZeroDivisionError
        _IncompleteInputError __build_class__ __import__ abs aiter all anext any ascii bin bool bytearray bytes
        callable chr classmethod complex delattr dict dir divmod enumerate filter float format frozenset getattr
        globals hasattr hash hex id int isinstance issubclass iter len list locals map max memoryview min next
        object oct ord pow print property range repr reversed round set setattr slice sorted staticmethod str sum
        super tuple type vars zip
    """,
        gated="open eval exec",
        refused="compile input breakpoint",
    ),
    "sys": Rules(
        allowed="""
        audit _clear_internal_caches _clear_type_cache _clear_type_descriptors displayhook exception exc_info
        excepthook exit getdefaultencoding
        getdlopenflags getallocatedblocks getunicodeinternedsize getfilesystemencoding getfilesystemencodeerrors
        getrefcount
        getrecursionlimit getsizeof _getframe _getframemodulename _is_immortal intern _is_interned is_finalizing
        getswitchinterval setswitchinterval setrecursionlimit set_coroutine_origin_tracking_depth
        get_coroutine_origin_tracking_depth set_asyncgen_hooks get_asyncgen_hooks is_stack_trampoline_active
        is_remote_debug_enabled unraisablehook get_int_max_str_digits set_int_max_str_digits _get_cpu_count_config
        _is_gil_enabled modules __displayhook__ __excepthook__ __unraisablehook__ implementation meta_path
        path_importer_cache
        getprofile gettrace
        path_hooks path argv orig_argv warnoptions _xoptions _jit stdin stdout stderr __stdin__ __stdout__ __stderr__
    """,
        refused="breakpointhook __breakpointhook__",
        absent="""
        addaudithook _current_frames _current_exceptions setdlopenflags setprofile settrace
        _setprofileallthreads _settraceallthreads call_tracing _debugmallocstats activate_stack_trampoline
        deactivate_stack_trampoline remote_exec _baserepl _dump_tracelets monitoring
    """,
    ),
    "_imp": Rules(
        allowed="""
        lock_held acquire_lock release_lock is_builtin is_frozen is_frozen_package extension_suffixes source_hash
    """,
        absent="""
        find_frozen get_frozen_object create_builtin init_frozen _frozen_module_names _override_frozen_modules_for_tests
        _override_multi_interp_extensions_check create_dynamic exec_dynamic exec_builtin _fix_co_filename
    """,
    ),
    "marshal": Rules(refused="dump dumps load loads"),
    "gc": Rules(
        allowed="""
        enable disable isenabled get_debug get_count set_threshold get_threshold collect get_stats is_tracked
        is_finalized
        freeze unfreeze get_freeze_count garbage callbacks
    """,
        absent="set_debug get_objects get_referrers get_referents",
    ),
    "_thread": Rules(
        allowed="""
        exit_thread exit get_ident get_native_id _excepthook _is_main_interpreter _get_main_thread_ident
        _get_name _local error _ExceptHookArgs
    """,
        gated="""
        start_new_thread start_new start_joinable_thread allocate_lock allocate lock LockType RLock _ThreadHandle
        _make_thread_handle
        _shutdown _count stack_size set_name daemon_threads_allowed
    """,
        refused="interrupt_main",
    ),
    "_signal": Rules(
        allowed="""
        default_int_handler strsignal valid_signals ItimerError struct_siginfo
    """,
        gated="getsignal",
        refused="signal alarm setitimer raise_signal set_wakeup_fd siginterrupt pause",
        absent="""
        getitimer pidfd_send_signal pthread_kill pthread_sigmask sigpending sigwait sigwaitinfo sigtimedwait
    """,
    ),
    "_locale": Rules(
        allowed="localeconv strcoll strxfrm nl_langinfo getencoding Error",
        gated="setlocale",
        absent="""
        gettext dgettext dcgettext textdomain bindtextdomain bind_textdomain_codeset
    """,
    ),
    "time": Rules(
        allowed="clock_getres mktime strptime get_clock_info struct_time",
        gated="""
        sleep
        time time_ns clock_gettime clock_gettime_ns gmtime localtime asctime ctime strftime
        monotonic monotonic_ns process_time process_time_ns thread_time thread_time_ns perf_counter perf_counter_ns
    """,
        absent="clock_settime clock_settime_ns pthread_getcpuclockid tzset",
    ),
    # --- the tensor engine's arrays: this project's own, with no access outside the VM
    "vmhost.engine._array": Rules(
        allowed="""
        AxisError _address _alone _as_strided _bincount _bits_packed _bits_unpacked _bpe_pieces _bpe_table
        _embedding_bags _embedding_evict _embedding_lookup _embedding_names _embedding_new _embedding_open
        _embedding_put _embedding_snapshot _embedding_snapshot_bloom _embedding_snapshot_end
        _embedding_snapshot_read _embedding_snapshot_rows _embedding_snapshot_waiting _embedding_statistics
        _embedding_update _embedding_update_bags
        _cummax _cummin _depthwise _depthwise_images _depthwise_weights _fft _fmax _fmin _interp _kinds
        _linear _max_pool _normalize _normalize_gradient _pad _partition _parts _patches _patches_sum _pool_gradient
        _random _reduceat _roll _scatter_add _labelled_rows _model_arrays _model_backends _model_names
        _model_open _model_ports _model_run _model_steps _shortest _split _text_numbers _tile _trace
        _unigram_pieces _unigram_table _windows _words _writes absolute add all any
        arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort array asarray
        ascontiguousarray astype bitwise_and bitwise_count bitwise_or bitwise_xor bool bool_ broadcast_to byte
        can_cast cbrt cdouble ceil clip
        complex128 complex64 concatenate conjugate copy copysign cos cosh count_nonzero csingle cumprod cumsum
        diagonal divide dot double dtype empty empty_like equal erf exp exp2 expm1 float16 float32 float64 floor
        floor_divide fmax fmin fmod from_dlpack frombuffer full full_like gcd greater greater_equal half heaviside
        hypot imag
        int16 int32 int64 int8 int_ intc intp invert isfinite isinf isnan lcm left_shift less less_equal log log10
        log1p log2 logaddexp logical_and logical_not logical_or logical_xor long longlong matmul max maximum
        mean min minimum multiply ndarray negative nextafter nonzero not_equal ones ones_like positive power
        prod promote_types ravel real reciprocal remainder reshape result_type right_shift rint searchsorted
        short sign signbit sin single sinh sort sqrt square squeeze subtract sum swapaxes take tan tanh
        trace transpose trunc ubyte ufunc uint uint16 uint32 uint64 uint8 uintc uintp ulong ulonglong ushort where
        zeros zeros_like
    """,
        absent="_statistics",
    ),
    # --- files, descriptors, processes
    "_io": Rules(
        allowed="""
        text_encoding UnsupportedOperation BlockingIOError IncrementalNewlineDecoder _BytesIOBuffer _IOBase _TextIOBase
        _BufferedIOBase _RawIOBase BytesIO BufferedWriter BufferedReader BufferedRWPair BufferedRandom StringIO
        TextIOWrapper
        FileIO._dealloc_warn FileIO.fileno FileIO.readable FileIO.writable
    """,
        gated="""
        open open_code FileIO FileIO.close FileIO._isatty_open_only FileIO.isatty FileIO.read FileIO.readall
        FileIO.readinto FileIO.seek
        FileIO.seekable FileIO.tell FileIO.truncate FileIO.write
    """,
    ),
    "posix": Rules(
        allowed="""
        getegid geteuid getgid getgroups getpid getppid getpgrp getuid getresuid getresgid times uname sched_yield
        sched_getaffinity
        major minor makedev strerror WCOREDUMP WIFCONTINUED WIFSTOPPED WIFSIGNALED WIFEXITED WEXITSTATUS WTERMSIG
        WSTOPSIG
        waitstatus_to_exitcode confstr sysconf getloadavg cpu_count fspath _path_splitroot_ex
        _path_normpath pathconf_names confstr_names sysconf_names error waitid_result stat_result statvfs_result
        sched_param terminal_size DirEntry times_result uname_result _have_functions
    """,
        gated="""
        urandom getrandom
        stat lstat access listdir scandir readlink statvfs chmod mkdir rmdir unlink remove rename replace utime
        truncate open
        close read readinto readv pread preadv write writev pwrite pwritev lseek fstat isatty dup ftruncate fsync
        fdatasync
        posix_fallocate fstatvfs get_inheritable set_inheritable get_blocking set_blocking sendfile copy_file_range
        device_encoding pipe pipe2 putenv unsetenv register_at_fork getcwd getcwdb environ get_terminal_size
    """,
        refused="""
        chdir fchdir umask system fork forkpty execv execve posix_spawn posix_spawnp kill killpg abort _exit wait
        waitpid wait3 wait4
        waitid link symlink mkfifo mknod chown fchown lchown chroot setuid setgid dup2 closerange nice
    """,
        absent="""
        ttyname fchmod ctermid getpriority setpriority splice sched_get_priority_max
        sched_get_priority_min sched_getparam sched_getscheduler sched_rr_get_interval sched_setparam sched_setscheduler
        sched_setaffinity posix_openpt grantpt unlockpt ptsname openpty login_tty getgrouplist getlogin seteuid setreuid
        setegid setregid setgroups initgroups getpgid setpgrp pidfd_open getsid setsid setpgid tcgetpgrp tcsetpgrp lockf
        posix_fadvise sync fpathconf pathconf setresuid setresgid getxattr setxattr removexattr listxattr memfd_create
        eventfd eventfd_read eventfd_write setns unshare timerfd_create timerfd_settime timerfd_settime_ns
        timerfd_gettime
        timerfd_gettime_ns _inputhook _is_inputhook_installed _create_environ
    """,
    ),
    "_posixsubprocess": Rules(refused="fork_exec"),
    "mmap": Rules(
        allowed="""
        error mmap.close mmap.find mmap.flush mmap.move mmap.read mmap.read_byte mmap.readline
        mmap.rfind mmap.seek mmap.seekable mmap.size mmap.tell mmap.write mmap.write_byte
    """,
        gated="mmap mmap.madvise",
        refused="mmap.resize",
    ),
    # --- network
    "select": Rules(
        allowed="""
        error epoll.fileno
    """,
        gated="""
        select epoll epoll.poll epoll.register epoll.modify epoll.unregister epoll.close
    """,
        refused="""
        epoll.fromfd
    """,
        absent="""
        poll
    """,
    ),
    "_socket": Rules(
        allowed="""
        getservbyname getservbyport getprotobyname ntohs ntohl htons htonl inet_aton inet_ntoa inet_pton inet_ntop
        getdefaulttimeout setdefaulttimeout CMSG_LEN CMSG_SPACE herror gaierror error timeout CAPI
        socket.fileno socket.getblocking socket.gettimeout
    """,
        gated="""
        socket SocketType socketpair close dup getaddrinfo gethostbyname gethostbyname_ex gethostname
        socket.recv socket.recv_into socket.recvfrom socket.recvfrom_into socket.recvmsg socket.recvmsg_into socket.send
        socket.sendall socket.sendto socket.sendmsg socket._accept socket.connect socket.connect_ex socket.close
        socket.detach
        socket.bind socket.listen socket.getpeername socket.getsockname socket.getsockopt socket.setblocking
        socket.setsockopt
        socket.settimeout socket.shutdown
    """,
        refused="sethostname gethostbyaddr getnameinfo socket.sendmsg_afalg",
        absent="if_nameindex if_nametoindex if_indextoname",
    ),
    "_ssl": Rules(
        allowed="""
        RAND_add RAND_bytes RAND_status txt2obj nid2obj _SSLSocket MemoryBIO SSLSession Certificate
        SSLError SSLCertVerificationError SSLZeroReturnError SSLWantWriteError SSLWantReadError SSLSyscallError
        SSLEOFError
        _SSLContext get_default_verify_paths
        _SSLContext._set_alpn_protocols _SSLContext._wrap_bio _SSLContext.cert_store_stats
        _SSLContext.get_ca_certs _SSLContext.get_ciphers _SSLContext.session_stats _SSLContext.set_ciphers
        _SSLContext.set_ecdh_curve _SSLContext.set_psk_client_callback
        _SSLContext.set_psk_server_callback
    """,
        gated="""
        _SSLContext.load_verify_locations _SSLContext.load_cert_chain _SSLContext.load_dh_params
        _SSLContext._wrap_socket
        _SSLContext.set_default_verify_paths
    """,
        refused="_SSLContext.keylog_filename",
        absent="_test_decode_cert",
    ),
    # --- databases
    "_sqlite3": Rules(
        allowed="""
        adapt complete_statement enable_callback_tracebacks register_adapter register_converter Blob Blob.seek
        Blob.tell Cursor
        PrepareProtocol Row Error Warning InterfaceError DatabaseError InternalError OperationalError ProgrammingError
        IntegrityError DataError NotSupportedError adapters converters connect
        Connection.create_aggregate Connection.create_collation Connection.create_function
        Connection.create_window_function
        Connection.cursor Connection.getconfig
        Connection.getlimit Connection.interrupt Connection.iterdump Connection.set_trace_callback
        Cursor.close Cursor.setinputsizes Cursor.setoutputsize
    """,
        gated="""
        Blob.__exit__ Blob.close Blob.read Blob.write
        Connection Connection.__exit__ Connection.setlimit Connection.set_authorizer Connection.set_progress_handler
        Connection.backup Connection.blobopen Connection.close Connection.commit Connection.deserialize
        Connection.rollback
        Connection.serialize Connection.execute Connection.executemany Connection.executescript
        Cursor.execute Cursor.executemany Cursor.executescript Cursor.fetchall Cursor.fetchmany
        Cursor.fetchone
    """,
        refused="""
        Connection.load_extension Connection.enable_load_extension Connection.setconfig
    """,
    ),
    # --- computation and data: no access outside the VM
    "_abc": Rules(
        allowed="""
        _abc_init _abc_instancecheck _abc_register _abc_subclasscheck _get_dump _reset_caches
        _reset_registry get_cache_token
    """
    ),
    "_ast": Rules(
        allowed="""
        AST Add And AnnAssign Assert Assign AsyncFor AsyncFunctionDef AsyncWith Attribute AugAssign Await
        BinOp BitAnd BitOr BitXor BoolOp Break Call ClassDef Compare Constant Continue Del Delete Dict
        DictComp Div Eq ExceptHandler Expr Expression FloorDiv For FormattedValue FunctionDef FunctionType
        GeneratorExp Global Gt GtE If IfExp Import ImportFrom In Interactive Interpolation Invert Is IsNot
        JoinedStr LShift Lambda List ListComp Load Lt LtE MatMult Match MatchAs MatchClass MatchMapping
        MatchOr MatchSequence MatchSingleton MatchStar MatchValue Mod Module Mult Name NamedExpr Nonlocal
        Not NotEq NotIn Or ParamSpec Pass Pow RShift Raise Return Set SetComp Slice Starred Store Sub
        Subscript TemplateStr Try TryStar Tuple TypeAlias TypeIgnore TypeVar TypeVarTuple UAdd USub UnaryOp
        While With Yield YieldFrom alias arg arguments boolop cmpop comprehension excepthandler expr
        expr_context keyword match_case mod operator pattern stmt type_ignore type_param unaryop withitem
    """
    ),
    "_asyncio": Rules(
        allowed="""
        Future Task _enter_task _get_running_loop _leave_task _register_eager_task _register_task
        _set_running_loop _swap_current_task _unregister_eager_task _unregister_task all_tasks current_task
        future_add_to_awaited_by future_discard_from_awaited_by get_event_loop get_running_loop
    """
    ),
    "_bisect": Rules(allowed="bisect_left bisect_right insort_left insort_right"),
    "_blake2": Rules(allowed="blake2b blake2s"),
    "_bz2": Rules(allowed="BZ2Compressor BZ2Decompressor"),
    "_codecs": Rules(
        allowed="""
        _unregister_error ascii_decode ascii_encode charmap_build charmap_decode charmap_encode decode
        encode escape_decode escape_encode latin_1_decode latin_1_encode lookup lookup_error
        raw_unicode_escape_decode raw_unicode_escape_encode readbuffer_encode register register_error
        unicode_escape_decode unicode_escape_encode unregister utf_16_be_decode utf_16_be_encode
        utf_16_decode utf_16_encode utf_16_ex_decode utf_16_le_decode utf_16_le_encode utf_32_be_decode
        utf_32_be_encode utf_32_decode utf_32_encode utf_32_ex_decode utf_32_le_decode utf_32_le_encode
        utf_7_decode utf_7_encode utf_8_decode utf_8_encode
    """
    ),
    "_codecs_cn": Rules(allowed="__map_gb18030ext __map_gb2312 __map_gbcommon __map_gbkext getcodec"),
    "_codecs_hk": Rules(allowed="__map_big5hkscs __map_big5hkscs_bmp __map_big5hkscs_nonbmp getcodec"),
    "_codecs_iso2022": Rules(allowed="getcodec"),
    "_codecs_jp": Rules(
        allowed="""
        __map_cp932ext __map_jisx0208 __map_jisx0212 __map_jisx0213_1_bmp __map_jisx0213_1_emp
        __map_jisx0213_2_bmp __map_jisx0213_2_emp __map_jisx0213_bmp __map_jisx0213_emp __map_jisx0213_pair
        __map_jisxcommon getcodec
    """
    ),
    "_codecs_kr": Rules(allowed="__map_cp949 __map_cp949ext __map_ksx1001 getcodec"),
    "_codecs_tw": Rules(allowed="__map_big5 __map_cp950ext getcodec"),
    "_collections": Rules(
        allowed="""
        OrderedDict _count_elements _deque_iterator _deque_reverse_iterator _tuplegetter defaultdict deque
    """
    ),
    "_contextvars": Rules(allowed="Context ContextVar Token copy_context"),
    "_csv": Rules(
        allowed="""
        Dialect Error Reader Writer _dialects field_size_limit get_dialect list_dialects reader
        register_dialect unregister_dialect writer
    """
    ),
    "_datetime": Rules(allowed="UTC date datetime datetime_CAPI time timedelta timezone tzinfo"),
    "_decimal": Rules(
        allowed="""
        BasicContext Clamped Context ConversionSyntax Decimal DecimalException DecimalTuple DefaultContext
        DivisionByZero DivisionImpossible DivisionUndefined ExtendedContext FloatOperation IEEEContext
        Inexact InvalidContext InvalidOperation Overflow Rounded Subnormal Underflow getcontext localcontext
        setcontext
    """
    ),
    "_elementtree": Rules(allowed="Element ParseError SubElement TreeBuilder XMLParser _set_factories"),
    "_functools": Rules(allowed="Placeholder _PlaceholderType _lru_cache_wrapper cmp_to_key partial reduce"),
    "_hashlib": Rules(
        allowed="""
        HASH HASHXOF HMAC UnsupportedDigestmodError _constructors compare_digest get_fips_mode hmac_digest
        hmac_new new openssl_md5 openssl_sha1 openssl_sha224 openssl_sha256 openssl_sha384 openssl_sha3_224
        openssl_sha3_256 openssl_sha3_384 openssl_sha3_512 openssl_sha512 openssl_shake_128
        openssl_shake_256 pbkdf2_hmac
    """,
        gated="scrypt",
    ),
    "_heapq": Rules(
        allowed="""
        heapify heapify_max heappop heappop_max heappush heappush_max heappushpop heappushpop_max
        heapreplace heapreplace_max
    """
    ),
    "_hmac": Rules(
        allowed="""
        HMAC UnknownHashError compute_blake2b_32 compute_blake2s_32 compute_digest compute_md5 compute_sha1
        compute_sha224 compute_sha256 compute_sha384 compute_sha3_224 compute_sha3_256 compute_sha3_384
        compute_sha3_512 compute_sha512 new
    """
    ),
    "_json": Rules(allowed="encode_basestring encode_basestring_ascii make_encoder make_scanner scanstring"),
    "_lzma": Rules(
        allowed="""
        LZMACompressor LZMADecompressor LZMAError _decode_filter_properties _encode_filter_properties
        is_check_supported
    """
    ),
    "_md5": Rules(allowed="MD5Type md5"),
    "_multibytecodec": Rules(
        allowed="""
        MultibyteIncrementalDecoder MultibyteIncrementalEncoder MultibyteStreamReader MultibyteStreamWriter
        __create_codec
    """
    ),
    "_opcode": Rules(
        allowed="""
        get_executor get_intrinsic1_descs get_intrinsic2_descs get_nb_ops get_special_method_names
        get_specialization_stats has_arg has_const has_exc has_free has_jump has_local has_name is_valid
        stack_effect
    """
    ),
    "_operator": Rules(
        allowed="""
        _compare_digest abs add and_ attrgetter call concat contains countOf delitem eq floordiv ge getitem
        gt iadd iand iconcat ifloordiv ilshift imatmul imod imul index indexOf inv invert ior ipow irshift
        is_ is_none is_not is_not_none isub itemgetter itruediv ixor le length_hint lshift lt matmul
        methodcaller mod mul ne neg not_ or_ pos pow rshift setitem sub truediv truth xor
    """
    ),
    "_pickle": Rules(
        allowed="""
        PickleBuffer PickleError Pickler PicklingError Unpickler UnpicklingError dump dumps load loads
    """
    ),
    "_random": Rules(
        allowed="Random Random.random Random.getstate Random.setstate Random.getrandbits",
        gated="Random.seed",
    ),
    "_sha1": Rules(allowed="SHA1Type sha1"),
    "_sha2": Rules(allowed="SHA224Type SHA256Type SHA384Type SHA512Type sha224 sha256 sha384 sha512"),
    "_sha3": Rules(allowed="sha3_224 sha3_256 sha3_384 sha3_512 shake_128 shake_256"),
    "_sre": Rules(allowed="ascii_iscased ascii_tolower compile getcodesize template unicode_iscased unicode_tolower"),
    "_stat": Rules(
        allowed="""
        S_IFMT S_IMODE S_ISBLK S_ISCHR S_ISDIR S_ISDOOR S_ISFIFO S_ISLNK S_ISPORT S_ISREG S_ISSOCK S_ISWHT
        filemode
    """
    ),
    "_statistics": Rules(allowed="_normal_dist_inv_cdf"),
    "_string": Rules(allowed="formatter_field_name_split formatter_parser"),
    "_struct": Rules(allowed="Struct _clearcache calcsize error iter_unpack pack pack_into unpack unpack_from"),
    "_sysconfig": Rules(allowed="config_vars"),
    "_tokenize": Rules(allowed="TokenizerIter"),
    "_types": Rules(
        allowed="""
        AsyncGeneratorType BuiltinFunctionType BuiltinMethodType CapsuleType CellType
        ClassMethodDescriptorType CodeType CoroutineType EllipsisType FrameType FunctionType GeneratorType
        GenericAlias GetSetDescriptorType LambdaType MappingProxyType MemberDescriptorType
        MethodDescriptorType MethodType MethodWrapperType ModuleType NoneType NotImplementedType
        SimpleNamespace TracebackType UnionType WrapperDescriptorType
    """
    ),
    "_typing": Rules(
        allowed="""
        Generic NoDefault ParamSpec ParamSpecArgs ParamSpecKwargs TypeAliasType TypeVar TypeVarTuple Union
        _idfunc
    """
    ),
    "_uuid": Rules(gated="generate_time_safe"),
    "_warnings": Rules(
        allowed="""
        _acquire_lock _filters_mutated_lock_held _onceregistry _release_lock _warnings_context filters warn
        warn_explicit
    """
    ),
    "_weakref": Rules(
        allowed="""
        CallableProxyType ProxyType ReferenceType _remove_dead_weakref getweakrefcount getweakrefs proxy ref
    """
    ),
    "_zoneinfo": Rules(allowed="ZoneInfo"),
    "_zstd": Rules(
        allowed="""
        ZstdCompressor ZstdDecompressor ZstdDict ZstdError finalize_dict get_frame_info get_frame_size
        get_param_bounds set_parameter_types train_dict
    """
    ),
    "array": Rules(allowed="ArrayType _array_reconstructor array"),
    "atexit": Rules(allowed="_clear _ncallbacks _run_exitfuncs register unregister"),
    "binascii": Rules(
        allowed="""
        Error Incomplete a2b_base64 a2b_hex a2b_qp a2b_uu b2a_base64 b2a_hex b2a_qp b2a_uu crc32 crc_hqx
        hexlify unhexlify
    """
    ),
    "cmath": Rules(
        allowed="""
        acos acosh asin asinh atan atanh cos cosh exp isclose isfinite isinf isnan log log10 phase polar
        rect sin sinh sqrt tan tanh
    """
    ),
    "errno": Rules(allowed="errorcode"),
    "itertools": Rules(
        allowed="""
        _grouper _tee _tee_dataobject accumulate batched chain combinations combinations_with_replacement
        compress count cycle dropwhile filterfalse groupby islice pairwise permutations product repeat
        starmap takewhile tee zip_longest
    """
    ),
    "math": Rules(
        allowed="""
        acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist erf erfc exp
        exp2 expm1 fabs factorial floor fma fmod frexp fsum gamma gcd hypot isclose isfinite isinf isnan
        isqrt lcm ldexp lgamma log log10 log1p log2 modf nextafter perm pow prod radians remainder sin sinh
        sqrt sumprod tan tanh trunc ulp
    """
    ),
    "pyexpat": Rules(
        allowed="""
        ErrorString ExpatError ParserCreate XMLParserType error errors expat_CAPI features model
    """
    ),
    "unicodedata": Rules(
        allowed="""
        UCD _ucnhash_CAPI bidirectional category combining decimal decomposition digit east_asian_width
        is_normalized lookup mirrored name normalize numeric ucd_3_2_0
    """
    ),
    "zlib": Rules(allowed="_ZlibDecompressor adler32 compress compressobj crc32 decompress decompressobj error"),
}

# CPython's native modules that no guest gets, and the reason. Modules in neither table are refused as well.
ABSENT = {
    "_ctypes": "calls any function of the process",
    "_ctypes_test": "for tests",
    "_testcapi": "for tests",
    "_interpreters": "runs code in other VMs",
    "_interpchannels": "reaches other VMs",
    "_interpqueues": "reaches other VMs",
    "_queue": "SimpleQueue.get cannot be stopped; queue.py brings one that can",
    "_symtable": "compiles",
    "_suggestions": "CPython does not load it in an interpreter with its own GIL",
    "_tracemalloc": "the process's allocators",
    "_lsprof": "hooks into the evaluation loop",
    "_remote_debugging": "reads the process's memory",
    "faulthandler": "the process's signal handlers",
    "resource": "the process's limits",
    "termios": "the host's terminal",
    "fcntl": "locks and flags of the process's files",
    "readline": "the host's terminal",
    "syslog": "the process's log",
    "grp": "reads files of the system",
    "pwd": "reads files of the system",
    "_multiprocessing": "other processes",
    "_posixshmem": "other processes",
    "_curses": "the host's terminal",
    "_curses_panel": "the host's terminal",
    "_dbm": "opens files by itself",
}


def header():
    """The text of policy_table.h."""
    lines = [
        "/* Generated by vmhost/stdlib/policy.py; do not edit. Sorted by strcmp: modules, names within each. */",
        "#ifndef VMH_POLICY_TABLE_H",
        "#define VMH_POLICY_TABLE_H",
        "",
        "typedef struct { const char *name; char verdict; } vmh_filing;     /* 'a'llowed, 'g'ated, 'r'efused */",
        "typedef struct { const char *module; const vmh_filing *filings; size_t count; } vmh_module_policy;",
        "",
    ]
    table = []
    for module in sorted(POLICY):
        rules = POLICY[module]
        filed = {name: verdict[0] for verdict in ("allowed", "gated", "refused") for name in getattr(rules, verdict)}
        identifier = "filings_of_" + module.replace(".", "_")
        lines.append(f"static const vmh_filing {identifier}[] = {{")
        lines += [f"    {{\"{name}\", '{filed[name]}'}}," for name in sorted(filed)]
        lines += ["    {0, 0},", "};"]
        table.append(f'    {{"{module}", {identifier}, {len(filed)}}},')
    return "\n".join([*lines, "", "static const vmh_module_policy vmh_policy[] = {", *table, "};", "", "#endif", ""])


if __name__ == "__main__":
    print(header(), end="")
