//! What NVIDIA's management library (NVML) says of a device, where the feature `nvml` is on and the library is installed.

#[cfg(feature = "nvml")]
use cudarc::driver::result;

/// What there is to read; `None` for what does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sensors {
    /// Degrees Celsius.
    pub(super) temperature: Option<u32>,
    /// Why its clock is lower than it could be; empty where nothing lowers it.
    pub(super) throttled_by: Option<Vec<&'static str>>,
}

/// The sensors of `cuda:index`.
#[cfg(not(feature = "nvml"))]
pub(super) fn read(_: u32) -> Sensors {
    Sensors::default()
}

/// The sensors of `cuda:index`.
#[cfg(feature = "nvml")]
pub(super) fn read(index: u32) -> Sensors {
    use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
    let Some(uuid) = uuid(index) else { return Sensors::default() };
    let Some(device) = library().and_then(|library| library.device_by_uuid(uuid).ok()) else {
        return Sensors::default();
    };
    Sensors {
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        throttled_by: device.current_throttle_reasons().ok().map(names),
    }
}

/// The library, opened once: it is there from the start, or not.
#[cfg(feature = "nvml")]
fn library() -> Option<&'static nvml_wrapper::Nvml> {
    static LIBRARY: std::sync::OnceLock<Option<nvml_wrapper::Nvml>> = std::sync::OnceLock::new();
    LIBRARY.get_or_init(|| nvml_wrapper::Nvml::init().ok()).as_ref()
}

/// By what the library knows a device, whose numbers there are others than CUDA's.
#[cfg(feature = "nvml")]
fn uuid(index: u32) -> Option<String> {
    let device = result::device::get(i32::try_from(index).ok()?).ok()?;
    let bytes = result::device::get_uuid(device).ok()?.bytes.map(|byte| byte as u8);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let [a, b, c, d, e] = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].map(hex);
    Some(format!("GPU-{a}-{b}-{c}-{d}-{e}"))
}

/// What lowers a clock. An idle device, which is at rest, is not throttled, and neither is one whose clock somebody has set.
#[cfg(feature = "nvml")]
fn names(reasons: nvml_wrapper::bitmasks::device::ThrottleReasons) -> Vec<&'static str> {
    use nvml_wrapper::bitmasks::device::ThrottleReasons as Reasons;
    let all = [
        (Reasons::SW_POWER_CAP, "power limit"),
        (Reasons::HW_SLOWDOWN, "hardware slowdown"),
        (Reasons::SYNC_BOOST, "the slowest device of its group"),
        (Reasons::SW_THERMAL_SLOWDOWN, "temperature, by the driver"),
        (Reasons::HW_THERMAL_SLOWDOWN, "temperature, by the hardware"),
        (Reasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    ];
    all.into_iter().filter(|(reason, _)| reasons.contains(*reason)).map(|(_, name)| name).collect()
}
