// Instructions that read and write registers only: a loop over 32 lanes each, which the compiler makes vector code of.
// Lanes that do not execute are computed as well and not stored. Titles in comments are sections of the PTX ISA.
#pragma once
#include "machine.h"

namespace ptx {

// ---- formats -----------------------------------------------------------------------------------------------------

inline float as_float(u32 x) { return std::bit_cast<float>(x); }
inline u32 as_bits(float x) { return std::bit_cast<u32>(x); }
inline float canonical(float x) { return x != x ? as_float(0x7fffffff) : x; }  // what arithmetic answers for a NaN
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

inline float from_bf16(u16 x) { return as_float(u32(x) << 16); }
inline u16 to_bf16(float x) {
  const u32 b = as_bits(x);
  return x != x ? 0x7fff : u16((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
inline u16 to_bf16_towards_zero(float x) { return x != x ? 0x7fff : u16(as_bits(x) >> 16); }

inline float from_f16(u16 x) {
  const u32 sign = u32(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;
  if (exponent == 31) return as_float(sign | 0x7f800000 | fraction << 13);
  if (exponent == 0) return std::copysign(float(fraction) * 0x1p-24f, as_float(sign | 0x3f800000));
  return as_float(sign | (exponent + 112) << 23 | fraction << 13);
}
inline u16 to_f16(float x) {
  const u32 b = as_bits(x), sign = b >> 16 & 0x8000;
  const u32 magnitude = b & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return u16(sign | 0x7c00);  // 65520 and above
  if (magnitude < 0x38800000) {                            // below 2^-14: a whole number of 2^-24
    return u16(sign | u32(std::nearbyintf(as_float(magnitude) * 0x1p24f)));
  }
  return u16(sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13));
}
inline float from_e4m3(u8 x) {
  const u32 exponent = x >> 3 & 15, fraction = x & 7;
  if ((x & 0x7f) == 0x7f) return as_float(0x7fffffff);
  const float value = exponent ? std::ldexp(float(8 + fraction), int(exponent) - 10) : float(fraction) * 0x1p-9f;
  return x & 0x80 ? -value : value;
}

// ---- loops over lanes --------------------------------------------------------------------------------------------

template <class D, class F> inline Next write(Warp& w, const Instruction& i, F value) {
  D* d = w.lanes<D>(i.operand[0]);
  const i32* e = w.effective;
#pragma GCC ivdep
  for (int l = 0; l < LANES; ++l) {
    const D v = value(l);
    d[l] = e[l] ? v : d[l];
  }
  return Next::following;
}
template <class D, class A, class F> inline Next unary(Warp& w, const Instruction& i, F f) {
  const A* a = w.lanes<A>(i.operand[1]);
  return write<D>(w, i, [=](int l) { return f(a[l]); });
}
template <class D, class A, class F> inline Next binary(Warp& w, const Instruction& i, F f) {
  const A *a = w.lanes<A>(i.operand[1]), *b = w.lanes<A>(i.operand[2]);
  return write<D>(w, i, [=](int l) { return f(a[l], b[l]); });
}
template <class D, class A, class C, class F> inline Next ternary(Warp& w, const Instruction& i, F f) {
  const A *a = w.lanes<A>(i.operand[1]), *b = w.lanes<A>(i.operand[2]);
  const C* c = w.lanes<C>(i.operand[3]);
  return write<D>(w, i, [=](int l) { return f(a[l], b[l], c[l]); });
}
// Scalar and only for lanes that execute: what would trap, or costs too much, where nothing asks for it.
template <class D, class A, class F> inline Next each(Warp& w, const Instruction& i, F f) {
  D* d = w.lanes<D>(i.operand[0]);
  const A* a = w.lanes<A>(i.operand[1]);
  each_lane(w.active, [&](int l) { d[l] = f(a[l], l); });
  return Next::following;
}

// Two floats in a 64-bit register.
struct Pair {
  float x, y;
};

// ---- results within a stated error -------------------------------------------------------------------------------

// An .approx result: exact and rounded once, or moved by up to `bound` (relative) where the machine perturbs.
float approximate(Machine&, double exact, double bound);

}  // namespace ptx
