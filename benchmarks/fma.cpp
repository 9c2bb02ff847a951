// Multiply-adds in registers, as many as the processor can: its peak.
#include "simd.h"

// enough for two units with a latency of six cycles, few enough for 16 registers
constexpr int SUMS = 12;

// floating-point operations done; `result` keeps the compiler from leaving them out
extern "C" int64_t multiply_add(int64_t steps, float *result) {
  Vec<float> x[SUMS], a = all(0.5f), b = all(1.0f);
  for (int k = 0; k < SUMS; k++) x[k] = all((float)k);  // equal ones would be computed once
  for (int64_t i = 0; i < steps; i++)
    for (int k = 0; k < SUMS; k++) x[k] = x[k] * a + b;
  for (int k = 0; k < SUMS; k++) *result += sum<float>(x[k]);
  return 2 * LANES<float> * SUMS * steps;
}
