//! Calls of every kind that lines show.

use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{
    Allocation, Api, Call, Effect, Event, Free, Launch, LossCause, LossEvent, MemoryAmount, Name, Outcome,
    ProcessChange, ProcessEvent, Space, Tgid, Tid, Transfer, Value, catalogue, decode,
};

use super::MIB;

/// The Unix time at which the recording began: 2024-12-02 12:36:56.25 UTC.
pub(crate) const START_UNIX: f64 = 1_733_143_016.25;

/// Calls one after the other, each 1.001017 ms after the previous one.
struct Calls {
    made: Vec<Call>,
}

impl Calls {
    /// A call of an exported function with these values in the order of its arguments.
    fn call(&mut self, api: Api, name: &str, status: i64, args: &[Value]) -> &mut Call {
        let function = catalogue().lookup(api, None, name).expect(name);
        let names = function.args.iter().flatten().map(|a| Name::Borrowed(a.name));
        assert_eq!(names.clone().count(), args.len(), "{name}");
        let id = self.made.len() as u64 + 1;
        let returns_status = decode::status(function, 0).is_some();
        self.made.push(Call {
            id,
            parent: None,
            depth: 0,
            nested: false,
            weight: 1,
            start_ns: id * 1_001_017,
            outcome: Outcome::Returned {
                value: status.cast_unsigned(),
                duration_ns: 10_u64.pow(id as u32 % 6) + 12,
            },
            return_probed: true,
            tgid: Tgid(12_345),
            tid: Tid(12_347),
            process: "basic02".into(),
            api,
            name: Name::Borrowed(function.name),
            class: function.class,
            status: returns_status.then_some(status),
            error: decode::error_name(function, status),
            args: function.args.is_some().then(|| names.zip(args.iter().cloned()).collect()),
            stream: None,
            effect: Effect::None,
            driver: None,
            site: None,
            stack: None,
        });
        self.made.last_mut().expect("just pushed")
    }

    fn runtime(&mut self, name: &str, status: i64, args: &[Value]) -> &mut Call {
        self.call(Api::Runtime, name, status, args)
    }

    fn driver(&mut self, name: &str, status: i64, args: &[Value]) -> &mut Call {
        self.call(Api::Driver, name, status, args)
    }
}

fn hex(n: u64) -> Value {
    Value::Hex(n)
}

fn uint(n: u64) -> Value {
    Value::Uint(n)
}

fn named(name: &'static str) -> Value {
    Value::Name(Name::Borrowed(name))
}

fn structure(fields: &[(&'static str, Value)]) -> Value {
    Value::Struct(fields.iter().map(|(name, v)| (Name::Borrowed(*name), v.clone())).collect())
}

fn allocates(address: u64, bytes: u64) -> Effect {
    let (address, kind) = (Some(address), Space::Device);
    Effect::Alloc(Allocation { bytes, address, kind, ..Allocation::default() })
}

fn frees(address: u64, bytes: u64) -> Effect {
    let freed = Some(MemoryAmount { kind: Space::Device, allocations: 1, bytes });
    Effect::Free(Free { address: Some(address), freed, ..Free::default() })
}

/// Makes a call a launch on a stream.
fn launches(call: &mut Call, kernel: Option<&str>, stream: u64) {
    call.stream = Some(stream);
    call.effect = Effect::Launch(Launch {
        kernel: kernel.map(Into::into),
        grid: Some([256, 1, 1]),
        block: Some([32, 8, 1]),
        ..Launch::default()
    });
}

/// A launch of which only the CUDA kernel is known.
fn named_launch(kernel: &str) -> Effect {
    Effect::Launch(Launch { kernel: Some(kernel.into()), ..Launch::default() })
}

fn memory(c: &mut Calls) {
    c.driver("cuInit", 0, &[hex(0)]);
    let inner = c.driver("cuMemAlloc_v2", 0, &[hex(0x7ffe_1230), uint(4 * MIB)]);
    (inner.parent, inner.depth) = (Some(3), 1);
    c.runtime("cudaMalloc", 0, &[hex(0x7ffe_1230), uint(4 * MIB)]).effect =
        allocates(0x7f3a_0000_0000, 4 * MIB);
    c.runtime("cudaMalloc", 0, &[hex(0x7ffe_1230), uint(4000)]).effect = allocates(0x7f3a_0040_0000, 4000);
    let inner = c.driver("cuMemAlloc_v2", 2, &[hex(0x7ffe_1230), uint(1 << 50)]);
    (inner.parent, inner.depth) = (Some(6), 1);
    c.runtime("cudaMalloc", 2, &[hex(0x7ffe_1230), uint(1 << 50)]);
    c.runtime("cudaMallocPitch", 0, &[hex(0x7ffe_1230), hex(0x7ffe_1238), uint(1000), uint(8)]).effect =
        allocates(0x7f3a_0050_0000, 4096);
    let extent = structure(&[("width", uint(64)), ("height", uint(8)), ("depth", Value::Unread)]);
    c.runtime("cudaMalloc3D", 0, &[Value::Unread, extent]).effect = allocates(0x7f3a_0060_0000, 12_345);
    c.runtime("cudaMallocHost", 0, &[hex(0x7ffe_1230), uint((5 << 18) + 1)]);
    c.runtime("cudaFree", 0, &[hex(0x7f3a_0000_0000)]).effect = frees(0x7f3a_0000_0000, 4 * MIB);
    c.runtime("cudaFree", 0, &[hex(0x7f3a_0040_0000)]).effect = frees(0x7f3a_0040_0000, 4000);
    c.runtime("cudaFree", 0, &[hex(0)]);
    c.runtime("cudaFree", 1, &[hex(0x10)]);
}

fn copies(c: &mut Calls) {
    let moved = |bytes, direction| {
        Effect::Transfer(Transfer { bytes: Some(bytes), ..Transfer::new(direction, false) })
    };
    let (dst, src) = (hex(0x7f3a_0000_0000), hex(0x55d0_1000));
    c.runtime("cudaMemcpy", 0, &[dst.clone(), src.clone(), uint(4 * MIB), named("H2D")]).effect =
        moved(4 * MIB, CopyDirection::HostToDevice);
    c.runtime("cudaMemcpy", 0, &[src.clone(), dst.clone(), uint(4000), named("D2H")]).effect =
        moved(4000, CopyDirection::DeviceToHost);
    c.runtime("cudaMemcpy", 21, &[dst.clone(), src.clone(), uint(4096), Value::Int(7)]);
    let args = [dst.clone(), uint(2048), src, uint(1536), uint(1536), uint(1500), named("H2D")];
    c.runtime("cudaMemcpy2D", 0, &args).effect = moved(1536 * 1500, CopyDirection::HostToDevice);
    c.driver("cuMemcpy2D_v2", 0, &[hex(0x7ffe_2000)]).effect = moved(12_345, CopyDirection::DeviceToDevice);
    c.driver("cuMemsetD32_v2", 0, &[dst.clone(), uint(0xffff_ffff), uint(MIB)]).effect =
        moved(4 * MIB, CopyDirection::Fill);
    c.runtime("cudaMemsetAsync", 0, &[dst.clone(), Value::Int(-1), uint(MIB), hex(0x55d0_2000)]).effect =
        moved(MIB, CopyDirection::Fill);
    let location = structure(&[("type", named("cudaMemLocationTypeDevice")), ("id", Value::Int(-1))]);
    c.runtime("cudaMemPrefetchAsync", 0, &[dst.clone(), uint(2 * MIB), location, hex(0), Value::Unread]);
    // the count is of blocks, not of bytes
    c.runtime("cudaMemDiscardBatchAsync", 0, &[dst.clone(), dst.clone(), uint(2048), hex(0), hex(0)]);
    c.call(Api::Nccl, "ncclMemAlloc", 0, &[dst, uint(2 * MIB)]);
}

fn launching(c: &mut Calls) {
    let args = |shared| {
        let (grid, block) = (Value::Dim3([256, 1, 1]), Value::Dim3([32, 8, 1]));
        [hex(0x55d0_3000), grid, block, hex(0x7ffe_3000), uint(shared), hex(0)]
    };
    let add = "vectorAdd(float const*, float const*, float*, int)";
    let mut inner = vec![uint(1); 11];
    (inner[0], inner[7], inner[8]) = (hex(0x55d0_4000), uint(48 << 10), hex(0));
    let call = c.driver("cuLaunchKernel", 0, &inner);
    (call.parent, call.depth) = (Some(99), 2);
    launches(call, Some(add), 0);
    launches(c.runtime("cudaLaunchKernel", 0, &args(0)), Some(add), 0);
    launches(c.runtime("cudaLaunchKernel", 0, &args(100)), None, 0);
    let long = format!("void run<{}>(int*)", "std::pair<int, ".repeat(20));
    launches(c.runtime("cudaLaunchKernel", 0, &args(0)), Some(&long), 0);
    launches(c.runtime("cudaLaunchKernel", 700, &args(0)), Some("k\x1b[2J\nl()"), 0);
    let call = c.runtime("cudaLaunchKernelExC", 0, &[hex(0x7ffe_4000), hex(0x55d0_3000), hex(0)]);
    launches(call, Some("scale<4>(float*)"), 0x55d0_9000);
    c.runtime("cudaLaunchKernelExC", 1, &[hex(0), hex(0x55d0_3000), hex(0)]);
    c.driver("cuLaunchGrid", 0, &[hex(0x55d0_4000), Value::Int(16), Value::Int(2)]).effect =
        named_launch("old");
    c.driver("cuLaunchCooperativeKernelMultiDevice", 801, &[hex(0x7ffe_4000), uint(2), hex(0)]);
    c.runtime("cudaGraphLaunch", 0, &[hex(0x55d0_5000), hex(0)]);
}

fn results(c: &mut Calls) {
    c.runtime("cudaStreamQuery", 600, &[hex(0)]);
    c.runtime("cudaSetDevice", 12_345, &[Value::Int(-3)]);
    c.runtime("cudaGetDeviceCount", 35, &[hex(0x7ffe_5000)]);
    c.call(Api::Nvml, "nvmlInit_v2", 9, &[]);
    c.call(Api::Nccl, "ncclCommAbort", 9, &[hex(0x55d0_6000)]);
    c.call(Api::Nccl, "ncclCommDestroy", 0, &[hex(0x55d0_6000)]);
    c.runtime("__cudaRegisterFatBinary", 0x55d0_7000, &[hex(0x55d0_8000)]);
    c.runtime("__cudaUnregisterFatBinary", 5, &[hex(0x55d0_8000)]);
    c.runtime("__cudaInitModule", 0x5501, &[hex(0x55d0_8000)]);
    let (grid, block) = (Value::Dim3([4, 1, 1]), Value::Dim3([256, 1, 1]));
    c.runtime("__cudaPushCallConfiguration", 0x55_0000_0000, &[grid, block, uint(3 << 10), hex(0)]);
    c.runtime("cudaSubgridCreate", 0x10, &[]);
    let name = Value::Text("k\"er'nel\\\x07é".to_owned());
    c.driver("cuModuleGetFunction", 500, &[hex(0x7ffe_6000), hex(0x55d0_9000), name]);
    let call = c.runtime("cudaDeviceSynchronize", 0, &[]);
    call.outcome = Outcome::Returned { value: 0, duration_ns: 31_200_000_000 };
    call.stack =
        Some(["step (train.cu:12)".to_owned(), "main (train\x1b.cu:80)".to_owned(), "?".to_owned()].into());
    let call = c.runtime("cudaDeviceSynchronize", 0, &[]);
    (call.outcome, call.status, call.process) = (Outcome::Unfinished, None, "bad\x1b[31m\nname".into());
    let call = c.runtime("cudaEventRecord", 0, &[hex(0x55d0_a000), hex(0)]);
    (call.outcome, call.status) = (Outcome::Begun, None);
}

/// A call of every kind.
pub(crate) fn calls() -> Vec<Call> {
    let mut calls = Calls { made: Vec::new() };
    memory(&mut calls);
    copies(&mut calls);
    launching(&mut calls);
    results(&mut calls);
    calls.made
}

/// Starts and exits of processes, and a loss.
fn changes() -> Vec<Event> {
    let change = |change, exit_status, container: Option<&str>| {
        Event::Process(ProcessEvent {
            id: 0,
            at_ns: 2_000_000_000,
            change,
            tgid: Tgid(12_345),
            tid: Tid(12_345),
            process: "basic02".into(),
            parent: Some(Tgid(1)),
            ns_pid: None,
            container: container.map(Into::into),
            exit_status,
            rank: None,
            live: Vec::new(),
        })
    };
    vec![
        change(ProcessChange::Start, None, None),
        change(ProcessChange::Start, None, Some("3f2a9c\x1b")),
        change(ProcessChange::Exec, None, None),
        change(ProcessChange::Exit, Some(0), None),
        change(ProcessChange::Exit, Some(137), None),
        change(ProcessChange::Exit, None, None),
        Event::Loss(LossEvent { at_ns: 0, cause: LossCause::RingFull, count: 123 }),
    ]
}

/// All events in order.
pub(crate) fn live_events() -> Vec<Event> {
    calls().into_iter().map(|c| Event::Call(Box::new(c))).chain(changes()).collect()
}

/// The calls that the classic tracer showed, in two phases each, and some that it did not.
pub(crate) fn phased_events() -> Vec<Event> {
    let mut c = Calls { made: Vec::new() };
    let (device, host) = (hex(0x7f12_3456_8000), hex(0x55d0_1000));
    let (grid, block) = (Value::Dim3([4, 1, 1]), Value::Dim3([256, 1, 1]));
    c.runtime("cudaMalloc", 0, &[hex(0x7ffe_1230), uint(4000)]);
    c.runtime("cudaMemcpy", 0, &[device.clone(), host.clone(), uint(4000), named("H2D")]);
    c.runtime("cudaMemcpy", 21, &[device.clone(), host.clone(), uint(4 * MIB), Value::Int(9)]);
    let launch = [hex(0x7f12_3456_7890), grid, block, hex(0x7ffe_3000), uint(0), hex(0)];
    c.runtime("cudaLaunchKernel", 0, &launch);
    c.runtime("cudaLaunchKernel", 0, &launch).effect = named_launch("vectorAdd(float*)");
    c.runtime("cudaMemcpy", 0, &[host, device.clone(), uint(4000), named("D2H")]);
    c.runtime("cudaFree", 0, &[device]);
    c.runtime("cudaStreamCreate", 0, &[hex(0x7ffe_1240)]);
    c.runtime("cudaStreamSynchronize", 0, &[hex(0x55d0_2000)]);
    c.runtime("cudaGetDevice", 0, &[hex(0x7ffe_1250)]);
    c.runtime("cudaSetDevice", 101, &[Value::Int(3)]);
    c.runtime("cudaEventCreate", 0, &[hex(0x7ffe_1260)]);
    c.runtime("cudaEventRecord", 0, &[hex(0x55d0_a000), hex(0)]);
    c.runtime("cudaEventSynchronize", 0, &[hex(0x55d0_a000)]);
    c.runtime("cudaMalloc", 12_345, &[Value::Unread, Value::Unread]);
    c.driver("cuInit", 0, &[hex(0)]);
    c.runtime("__cudaUnregisterFatBinary", 0, &[hex(0x55d0_8000)]);
    c.runtime("cudaDeviceSynchronize", 0, &[]).process = "bad\x1b[31m name here".into();
    let begun = |call: &Call| Call { outcome: Outcome::Begun, status: None, error: None, ..call.clone() };
    let open = c.made.last().map(|last| Call { outcome: Outcome::Unfinished, status: None, ..last.clone() });
    let both = c.made.iter().flat_map(|call| [begun(call), call.clone()]);
    both.chain(open).map(|call| Event::Call(Box::new(call))).collect()
}

/// Calls of three threads that have not returned, unsorted.
pub(crate) fn open_calls() -> Vec<Call> {
    let mut c = Calls { made: Vec::new() };
    let mut open = |tid, start_ns, call: fn(&mut Calls) -> &mut Call| {
        let call = call(&mut c);
        (call.tid, call.start_ns, call.outcome) = (Tid(tid), start_ns, Outcome::Begun);
        (call.status, call.error, call.process) = (None, None, "python\n".into());
    };
    open(12_350, 70_000_000_000, |c| c.runtime("cudaMalloc", 0, &[hex(0x7ffe), uint(MIB)]));
    open(12_351, 68_800_000_000, |c| c.runtime("cudaStreamSynchronize", 0, &[hex(0x55d0_2000)]));
    open(12_350, 70_000_000_000, |c| c.driver("cuMemAlloc_v2", 0, &[hex(0x7ffe), uint(MIB)]));
    open(12_352, 99_999_999_000, |c| c.runtime("cudaDeviceSynchronize", 0, &[]));
    open(12_351, 68_800_004_000, |c| c.driver("cuStreamSynchronize", 0, &[hex(0x55d0_2000)]));
    c.made
}
