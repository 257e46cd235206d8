// Which instruction sets the Highway kernels are compiled for. Include before any Highway header.
// SSSE3 and AVX3_DL are left out: the kernels gain nothing from them and each costs compile time.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
