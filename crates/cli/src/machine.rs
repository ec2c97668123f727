//! The devices and libraries that this process really uses.

use std::ffi::CStr;

use anyhow::{Context, Result, bail};
use foretoken_runner::MemoryUse;
use mlx_rs::{Device, DeviceType};
use serde::Serialize;

use crate::args::DeviceChoice;

/// What `inspect` says about the machine.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) mlx_version: String,
    pub(crate) devices: Vec<DeviceFacts>,
    pub(crate) blas: Option<Blas>,
    pub(crate) memory: Memory,
}

#[derive(Debug, Serialize)]
pub(crate) struct DeviceFacts {
    pub(crate) name: &'static str,
    pub(crate) available: bool,
    pub(crate) in_use: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) active_bytes: usize,
    pub(crate) cached_bytes: usize,
    pub(crate) peak_bytes: usize,
    pub(crate) limit_bytes: usize,
}

/// The library that answers for `cblas_sgemm`, which decides the speed of the CPU backend.
#[derive(Debug, Serialize)]
pub(crate) struct Blas {
    pub(crate) library: String,
    /// OpenBLAS' own description, when it answers behind that library.
    pub(crate) openblas: Option<OpenBlas>,
}

#[derive(Debug, Serialize)]
pub(crate) struct OpenBlas {
    pub(crate) config: String,
    pub(crate) core: String,
    pub(crate) threads: i32,
}

/// MLX's settings that suit speculation better than its defaults do.
///
/// Its CUDA backend may give attention over several rows to cuDNN, which plans anew for each number of
/// cached slots; a speculative round brings a new number almost every time, and a plan costs more than the
/// round. MLX's own kernels need no plan.
const SETTINGS: [(&str, &str); 1] = [("MLX_CUDA_USE_CUDNN_SDPA", "0")];

/// Sets what the user left open.
///
/// # Safety
/// No other thread exists yet.
pub(crate) unsafe fn settle_environment() {
    for (name, value) in left_open(|name| std::env::var_os(name).is_some()) {
        // SAFETY: the caller promises that nothing reads the environment at the same time.
        unsafe { std::env::set_var(name, value) };
    }
}

fn left_open(is_set: impl Fn(&str) -> bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    SETTINGS.into_iter().filter(move |(name, _)| !is_set(name))
}

/// Prepares this thread for MLX and chooses the default device. The first call into MLX installs the
/// handler that turns errors of the native side into results instead of ending the process.
pub(crate) fn prepare(choice: DeviceChoice) -> Result<DeviceType> {
    let auto = Device::try_default().context("MLX does not answer")?;
    match choice {
        DeviceChoice::Auto => {}
        DeviceChoice::Cpu => Device::set_default(&Device::cpu()),
        DeviceChoice::Gpu if available(DeviceType::Gpu) => Device::set_default(&Device::gpu()),
        DeviceChoice::Gpu => bail!("no GPU is available to MLX here; use --device cpu or --device auto"),
    }
    drop(auto);
    Ok(Device::try_default()?.get_type()?)
}

impl Machine {
    pub(crate) fn look() -> Result<Self> {
        let used = Device::try_default()?.get_type()?;
        let device = |name, kind: DeviceType| DeviceFacts {
            name,
            available: available(kind),
            in_use: kind as u32 == used as u32,
        };
        let memory = MemoryUse::now()?;
        Ok(Self {
            mlx_version: mlx_version(),
            devices: vec![device("cpu", DeviceType::Cpu), device("gpu", DeviceType::Gpu)],
            blas: blas(),
            memory: Memory {
                active_bytes: memory.active,
                cached_bytes: memory.cached,
                peak_bytes: memory.peak,
                limit_bytes: mlx_rs::memory::memory_limit()?,
            },
        })
    }
}

fn available(kind: DeviceType) -> bool {
    let mut answer = false;
    // SAFETY: the device handle is made here, used once and freed; `answer` outlives the call.
    unsafe {
        let device = mlx_sys::mlx_device_new_type(kind.into(), 0);
        let status = mlx_sys::mlx_device_is_available(&mut answer, device);
        mlx_sys::mlx_device_free(device);
        status == 0 && answer
    }
}

fn mlx_version() -> String {
    // SAFETY: the string handle is made here, read while it lives, and freed.
    unsafe {
        let mut text = mlx_sys::mlx_string_new();
        let status = mlx_sys::mlx_version(&mut text);
        let data = mlx_sys::mlx_string_data(text);
        let version = match status == 0 && !data.is_null() {
            true => CStr::from_ptr(data).to_string_lossy().into_owned(),
            false => "unknown".to_owned(),
        };
        mlx_sys::mlx_string_free(text);
        version
    }
}

#[cfg(target_os = "linux")]
fn blas() -> Option<Blas> {
    linux::blas()
}

#[cfg(not(target_os = "linux"))]
fn blas() -> Option<Blas> {
    None
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::{CStr, c_char, c_int, c_void};

    use super::{Blas, OpenBlas};

    /// `Dl_info` of dladdr(3).
    #[repr(C)]
    struct DlInfo {
        file: *const c_char,
        base: *mut c_void,
        symbol: *const c_char,
        address: *mut c_void,
    }

    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
        fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
    }

    fn symbol(name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the null handle is the default search order; the name ends with a NUL.
        let address = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    pub(super) fn blas() -> Option<Blas> {
        let address = symbol(c"cblas_sgemm")?;
        let mut info = DlInfo {
            file: std::ptr::null(),
            base: std::ptr::null_mut(),
            symbol: std::ptr::null(),
            address: std::ptr::null_mut(),
        };
        // SAFETY: `info` is a valid Dl_info; the name it receives lives as long as the library.
        let library = unsafe {
            if dladdr(address, &mut info) == 0 || info.file.is_null() {
                return None;
            }
            CStr::from_ptr(info.file).to_string_lossy().into_owned()
        };
        let file = library.rsplit('/').next().unwrap_or_default().to_owned();
        Some(Blas { library: file, openblas: openblas() })
    }

    fn openblas() -> Option<OpenBlas> {
        let config = symbol(c"scipy_openblas_get_config")?;
        let core = symbol(c"scipy_openblas_get_corename")?;
        let threads = symbol(c"scipy_openblas_get_num_threads")?;
        // SAFETY: these are OpenBLAS' own functions: two return static strings, one a number.
        unsafe {
            let text = |address| {
                let ask: extern "C" fn() -> *const c_char = std::mem::transmute::<*mut c_void, _>(address);
                CStr::from_ptr(ask()).to_string_lossy().trim().to_owned()
            };
            let ask: extern "C" fn() -> c_int = std::mem::transmute::<*mut c_void, _>(threads);
            Some(OpenBlas { config: text(config), core: text(core), threads: ask() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_of_the_user_wins() {
        assert_eq!(left_open(|_| false).collect::<Vec<_>>(), SETTINGS);
        assert_eq!(left_open(|name| name == "MLX_CUDA_USE_CUDNN_SDPA").count(), 0);
    }
}
