// Which instruction sets the Highway kernels are compiled for. Include before any Highway header.
// SSSE3 and AVX3_DL are left out: the kernels gain nothing from them and each costs compile time.
// Under a sanitizer, where a kernel's compilation takes minutes, there are two: the baseline and
// AVX2; every set gives the same bits, and the other builds test the rest.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HF_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HF_SANITIZED 1
#endif

#ifdef HF_SANITIZED
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
