//! Where weights go and in which type they are computed.

use mlx_rs::{Device, DeviceType, Dtype};

use crate::Result;

/// The kind of device that computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Products run through BLAS, which has a fast path for float32 alone.
    Cpu,
    /// Metal or CUDA: 16-bit floats and packed weights have kernels of their own.
    Gpu,
}

/// The floating type of weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeType {
    /// float32 on CPU and for checkpoints that are float32 throughout, else bfloat16.
    Auto,
    /// float32.
    F32,
    /// bfloat16.
    Bf16,
}

/// How to load weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// The device that will compute.
    pub placement: Placement,
    /// The type to compute in.
    pub compute: ComputeType,
    /// Whether packed weights become floats while loading.
    pub expand: bool,
}

impl LoadOptions {
    /// float32 throughout: CPUs have a fast product for nothing else.
    pub fn cpu() -> Self {
        Self { placement: Placement::Cpu, compute: ComputeType::Auto, expand: true }
    }

    /// 16-bit floats, packed weights kept packed.
    pub fn gpu() -> Self {
        Self { placement: Placement::Gpu, compute: ComputeType::Auto, expand: false }
    }

    /// What suits MLX's default device.
    pub fn detect() -> Result<Self> {
        Ok(match Device::try_default()?.get_type()? {
            DeviceType::Cpu => Self::cpu(),
            DeviceType::Gpu => Self::gpu(),
        })
    }

    /// The computing type for a checkpoint that is, or is not, float32 throughout.
    pub(crate) fn dtype(&self, all_f32: bool) -> Dtype {
        match (self.compute, self.placement) {
            (ComputeType::F32, _) | (ComputeType::Auto, Placement::Cpu) => Dtype::Float32,
            (ComputeType::Auto, Placement::Gpu) if all_f32 => Dtype::Float32,
            (ComputeType::Auto | ComputeType::Bf16, _) => Dtype::Bfloat16,
        }
    }
}
