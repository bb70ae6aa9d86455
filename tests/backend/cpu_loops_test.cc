// The vector loops of every instruction set that this processor has, against the C library in double.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "dag/tensor.h"
#include "peer/backend/cpu/loops/table.h"

namespace weft::peer::cpu {
namespace {

std::vector<const LoopTable*> tables() {
  std::vector<const LoopTable*> list;
  for (const char* isa : {"baseline", "v3", "v4"})
    if (const LoopTable* table = loop_table_for(isa)) list.push_back(table);
  return list;
}

std::vector<float> apply(const LoopTable& table, ElementCode code, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  ElementArgs args{};
  args.out = y.data();
  args.in[0] = x.data();
  args.count = static_cast<int64_t>(x.size());
  table.element[code](args);
  return y;
}

// In units of the last place of the exact result; below the smallest normal number, of that.
double ulps(float actual, double exact) {
  if (std::isnan(exact)) return std::isnan(actual) ? 0 : 1e300;
  const float rounded = static_cast<float>(exact);
  if (std::isinf(rounded)) return actual == rounded ? 0 : 1e300;
  const double magnitude = std::max(std::abs(exact), static_cast<double>(std::numeric_limits<float>::min()));
  const double unit = std::ldexp(1.0, std::ilogb(magnitude) - 23);
  return std::abs(static_cast<double>(actual) - exact) / unit;
}

struct Function {
  const char* name;
  ElementCode code;
  std::function<double(double)> exact;
  double low, high, ulps_max;
};

TEST(CpuLoops, FunctionsAreWithinTheirUlps) {
  const Function functions[] = {
      {"exp", kExp, [](double x) { return std::exp(x); }, -110, 95, 2},
      {"exp small", kExp, [](double x) { return std::exp(x); }, -1e-3, 1e-3, 1},
      {"log", kLog, [](double x) { return std::log(x); }, 0, 1e6, 2},
      {"log near one", kLog, [](double x) { return std::log(x); }, 0.9, 1.1, 2},
      {"tanh", kTanh, [](double x) { return std::tanh(x); }, -10, 10, 2},
      {"tanh small", kTanh, [](double x) { return std::tanh(x); }, -1e-2, 1e-2, 1},
      {"erf", kErf, [](double x) { return std::erf(x); }, -6, 6, 2},
      {"sigmoid", kSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 80, 3.5},
      {"softplus", kSoftplus, [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); },
       -60, 60, 3.5},
  };
  for (const LoopTable* table : tables()) {
    for (const Function& f : functions) {
      SCOPED_TRACE(std::string(table->isa) + " " + f.name);
      Rng rng(11, 0);
      std::vector<float> x(200'003);
      for (float& v : x) v = static_cast<float>(f.low + (f.high - f.low) * rng.uniform());
      const std::vector<float> y = apply(*table, f.code, x);
      double worst = 0;
      float at = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double error = ulps(y[i], f.exact(static_cast<double>(x[i])));
        if (error > worst) worst = error, at = x[i];
      }
      EXPECT_LE(worst, f.ulps_max) << "at " << at;
    }
  }
}

TEST(CpuLoops, FunctionsTakeInfinitiesAndNaNAsIeeeHasThem) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x{inf, -inf, nan, 0, -1, 1e-42f, 3e38f, -3e38f};
  for (const LoopTable* table : tables()) {
    SCOPED_TRACE(table->isa);
    const auto check = [&](ElementCode code, const std::function<double(double)>& exact) {
      const std::vector<float> y = apply(*table, code, x);
      for (size_t i = 0; i < x.size(); ++i)
        EXPECT_LE(ulps(y[i], exact(static_cast<double>(x[i]))), 2) << "code " << code << " of " << x[i];
    };
    check(kExp, [](double v) { return std::exp(v); });
    check(kLog, [](double v) { return std::log(v); });
    check(kTanh, [](double v) { return std::tanh(v); });
    check(kErf, [](double v) { return std::erf(v); });
    check(kSigmoid, [](double v) { return 1 / (1 + std::exp(-v)); });
  }
}

TEST(CpuLoops, DropoutDrawsArePhiloxOfThePosition) {
  std::vector<float> ones(1000, 1.0f), y(1000);
  for (const LoopTable* table : tables()) {
    for (const uint64_t position : {uint64_t{0}, uint64_t{3}, (uint64_t{1} << 34) + 6}) {
      ElementArgs args{};
      args.out = y.data();
      args.in[0] = ones.data();
      args.count = 1000;
      args.p0 = 2;
      args.position = position;
      args.seed = 0x123456789abcdefull;
      args.step = 9, args.key = 4, args.threshold = 0x80000000u;
      table->element[kDropout](args);
      for (uint64_t i = 0; i < 1000; ++i) {
        const uint64_t block = (position + i) / 4;
        const PhiloxBlock draws =
            philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 9, 4},
                   {static_cast<uint32_t>(args.seed), static_cast<uint32_t>(args.seed >> 32)});
        ASSERT_EQ(y[i], draws[(position + i) % 4] >= 0x80000000u ? 2.0f : 0.0f) << table->isa << " " << i;
      }
    }
  }
}

// Casts between float and the halves, as dag/tensor.h rounds them.
template <typename From, typename To>
std::vector<To> cast(const LoopTable& table, int from, int to, const std::vector<From>& x) {
  std::vector<To> y(x.size());
  ElementArgs args{};
  args.out = y.data();
  args.in[0] = x.data();
  args.count = static_cast<int64_t>(x.size());
  table.element[kCastFirst + kCastTypes * from + to](args);
  return y;
}

TEST(CpuLoops, EveryHalfBecomesTheFloatItIs) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  for (const LoopTable* table : tables()) {
    SCOPED_TRACE(table->isa);
    const auto f16 = cast<uint16_t, float>(*table, 5, 0, halves),
               bf16 = cast<uint16_t, float>(*table, 6, 0, halves);
    for (size_t i = 0; i < halves.size(); ++i) {
      const float want = dag::float_from_f16(halves[i]), brain = dag::float_from_bf16(halves[i]);
      ASSERT_TRUE(f16[i] == want || (std::isnan(f16[i]) && std::isnan(want))) << i;
      ASSERT_EQ(std::signbit(f16[i]), std::signbit(want) || (std::isnan(want) && (i & 0x8000))) << i;
      ASSERT_TRUE(bf16[i] == brain || (std::isnan(bf16[i]) && std::isnan(brain))) << i;
    }
  }
}

TEST(CpuLoops, FloatsBecomeTheNearestHalf) {
  // Every half, and what lies between it and the next: a quarter, half and three quarters of the way.
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x8000; ++bits) {
    const float low = dag::float_from_f16(static_cast<uint16_t>(bits)),
                high = dag::float_from_f16(static_cast<uint16_t>(bits + 1));
    for (const float part : {0.0f, 0.25f, 0.5f, 0.75f})
      if (std::isfinite(low) && std::isfinite(high))
        for (const float sign : {1.0f, -1.0f}) x.push_back(sign * (low + (high - low) * part));
  }
  for (const float value :
       {65504.0f, 65519.0f, 65520.0f, 1e9f, HUGE_VALF, -HUGE_VALF, std::nanf(""), 3.4e38f})
    x.push_back(value);
  Rng rng(12, 0);
  for (int i = 0; i < 100'000; ++i)
    x.push_back(static_cast<float>(std::ldexp(rng.uniform() - 0.5, static_cast<int>(rng.below(250)) - 125)));
  for (const LoopTable* table : tables()) {
    SCOPED_TRACE(table->isa);
    const auto f16 = cast<float, uint16_t>(*table, 0, 5, x), bf16 = cast<float, uint16_t>(*table, 0, 6, x);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(f16[i], dag::f16_from_float(x[i])) << x[i];
      ASSERT_EQ(bf16[i], dag::bf16_from_float(x[i])) << x[i];
    }
  }
}

TEST(CpuLoops, RoundingToHalvesIsCastingThereAndBack) {
  std::vector<float> x{0.0f, -0.0f, 65519.0f, 65520.0f, -65520.0f, 1e-8f, 3e-8f, 6.1e-5f, 6.103e-5f, 3.4e38f};
  Rng rng(11, 3);
  for (int i = 0; i < 4000; ++i) x.push_back(static_cast<float>(std::ldexp(rng.normal(), i % 60 - 35)));
  for (const LoopTable* table : tables()) {
    SCOPED_TRACE(table->isa);
    const std::vector<float> f16 = apply(*table, kRoundToF16, x), bf16 = apply(*table, kRoundToBF16, x);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(f16[i], dag::float_from_f16(dag::f16_from_float(x[i]))) << x[i];
      EXPECT_EQ(bf16[i], dag::float_from_bf16(dag::bf16_from_float(x[i]))) << x[i];
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(apply(*table, kRoundToF16, {nan})[0]));
    EXPECT_TRUE(std::isnan(apply(*table, kRoundToBF16, {nan})[0]));
  }
}

// a[m, k] b[k, n] of bytes at the ends of their ranges, with outer products added.
struct ByteProblem {
  int64_t m, k, n;
  bool a_unsigned, flips_b;
  std::vector<uint8_t> a, b;
  std::vector<int32_t> of_row, of_column;

  ByteProblem(int64_t rows, int64_t terms, int64_t columns, bool left_unsigned, bool flips)
      : m(rows), k(terms), n(columns), a_unsigned(left_unsigned), flips_b(flips) {
    Rng rng(static_cast<uint64_t>(m * 1000 + k * 10 + n), 4);
    constexpr uint8_t kEnds[] = {0, 1, 127, 128, 254, 255};
    a.resize(static_cast<size_t>(m * quads() * 4));
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < k; ++j) a[static_cast<size_t>(i * quads() * 4 + j)] = kEnds[rng.below(6)];
    for (int64_t i = 0; i < k * n; ++i) b.push_back(kEnds[rng.below(6)]);
    for (int64_t i = 0; i < m; ++i) of_row.push_back(static_cast<int32_t>(rng.below(99)) - 50);
    for (int64_t i = 0; i < kBytePanelColumns; ++i)
      of_column.push_back(static_cast<int32_t>(rng.below(99)) - 50);
  }
  int64_t quads() const { return (k + 3) / 4; }

  std::vector<int32_t> expected() const {
    const auto number = [](uint8_t byte, bool is_unsigned) {
      return is_unsigned ? int32_t{byte} : int32_t{static_cast<int8_t>(byte)};
    };
    std::vector<int32_t> c;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        int32_t sum = of_row[static_cast<size_t>(i)] * of_column[static_cast<size_t>(j)];
        for (int64_t p = 0; p < k; ++p) {
          const uint8_t right = b[static_cast<size_t>(p * n + j)];
          sum += number(a[static_cast<size_t>(i * quads() * 4 + p)], a_unsigned) *
                 number(flips_b ? static_cast<uint8_t>(right ^ 0x80) : right, !a_unsigned);
        }
        c.push_back(sum);
      }
    return c;
  }

  std::vector<int32_t> computed(const LoopTable& table, void (*multiply)(const ByteProductArgs&)) const {
    std::vector<const uint8_t*> rows;
    for (int64_t p = 0; p < k; ++p) rows.push_back(b.data() + p * n);
    const ByteSegment segments[] = {{0, 0, n / 2}, {n / 2, n / 2, n - n / 2}};
    std::vector<uint8_t> panel(static_cast<size_t>(quads() * 4 * kBytePanelColumns));
    table.byte_panel({.rows = rows.data(),
                      .depth = k,
                      .segments = segments,
                      .segment_count = 2,
                      .stride = 1,
                      .has_slack = 0,
                      .flip_signs = flips_b,
                      .panel = panel.data()});
    std::vector<int32_t> c(static_cast<size_t>(m * n));
    multiply({.a = a.data(),
              .a_stride = quads() * 4,
              .a_unsigned = a_unsigned,
              .m = m,
              .quads = quads(),
              .n = n,
              .panel = panel.data(),
              .of_row = {nullptr, of_row.data()},
              .of_column = {nullptr, of_column.data()},
              .c = c.data(),
              .c_stride = n});
    return c;
  }
};

TEST(CpuLoops, ProductsOfBytesAreExact) {
  for (const LoopTable* table : tables())
    for (const auto multiply : {table->byte_product, table->byte_product_vnni}) {
      if (multiply == nullptr) continue;
      for (const int64_t m : {1, 5, 13})
        for (const int64_t k : {1, 4, 39})
          for (const int64_t n : {1, 8, 17, 40, 64})
            for (const bool a_unsigned : {false, true})
              for (const bool flips : {false, true}) {
                SCOPED_TRACE(std::string(table->isa) + " " + std::to_string(m) + " " + std::to_string(k) +
                             " " + std::to_string(n));
                const ByteProblem problem(m, k, n, a_unsigned, flips);
                EXPECT_EQ(problem.computed(*table, multiply), problem.expected());
              }
    }
}

TEST(CpuLoops, SumsOfBytesAreExact) {
  std::vector<uint8_t> bytes(301);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + 5);
  for (const LoopTable* table : tables())
    for (const int64_t count : {0, 1, 63, 64, 65, 301}) {
      int32_t as_unsigned = 0, as_signed = 0;
      for (int64_t i = 0; i < count; ++i) {
        const uint8_t byte = bytes[static_cast<size_t>(i)];
        as_unsigned += byte, as_signed += static_cast<int8_t>(byte);
      }
      EXPECT_EQ(table->byte_sum(bytes.data(), count, 1), as_unsigned) << table->isa << " " << count;
      EXPECT_EQ(table->byte_sum(bytes.data(), count, 0), as_signed) << table->isa << " " << count;
    }
}

TEST(CpuLoops, UniformAndNormalNumbersAreThoseOfThePosition) {
  std::vector<float> low(1000, -1.0f), high(1000, 3.0f), y(1000);
  for (const LoopTable* table : tables()) {
    for (const uint64_t position : {uint64_t{0}, uint64_t{3}, (uint64_t{1} << 34) + 6}) {
      ElementArgs args{};
      args.out = y.data();
      args.in[0] = low.data(), args.in[1] = high.data();
      args.count = 1000;
      args.position = position;
      args.seed = 0x123456789abcdefull;
      args.step = 9, args.key = 4;
      const auto draws = [&](uint64_t place) {
        const uint64_t block = place / 4;
        return philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 9, 4},
                      {static_cast<uint32_t>(args.seed), static_cast<uint32_t>(args.seed >> 32)});
      };
      table->element[kRandomUniform](args);
      for (uint64_t i = 0; i < 1000; ++i) {
        const uint32_t draw = draws(position + i)[(position + i) % 4];
        ASSERT_FLOAT_EQ(y[i], static_cast<float>(-1 + 4 * std::ldexp(draw >> 8, -24)))
            << table->isa << " " << i;
      }
      table->element[kRandomNormal](args);
      for (uint64_t i = 0; i < 1000; ++i) {
        const PhiloxBlock block = draws(position + i);
        const size_t pair = (position + i) % 4 / 2 * 2;
        const double radius = std::sqrt(-2 * std::log(std::ldexp((block[pair] >> 8) + 1, -24)));
        const double angle = 2 * std::acos(-1) * std::ldexp(block[pair + 1] >> 8, -24);
        const double normal = radius * ((position + i) % 2 == 0 ? std::cos(angle) : std::sin(angle));
        ASSERT_NEAR(y[i], -1 + 3 * normal, 1e-5) << table->isa << " " << i;
      }
    }
  }
}

TEST(CpuLoops, TransposeMovesEveryElementOfOddShapes) {
  for (const LoopTable* table : tables()) {
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {8, 33}, {37, 66}, {70, 4}}) {
      std::vector<float> source(static_cast<size_t>(rows * columns)), target(source.size(), -1);
      for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i);
      table->transpose(source.data(), columns, target.data(), rows, rows, columns);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          ASSERT_EQ(target[static_cast<size_t>(c * rows + r)], source[static_cast<size_t>(r * columns + c)]);
    }
  }
}

TEST(CpuLoops, MatrixBlocksAgreeWithPlainLoopsForOddShapesAndStrides) {
  alignas(64) static float scratch[kGemmDepth * 64];
  struct Case {
    int64_t m, n, depth;
    bool trans_a, trans_b;
  };
  for (const LoopTable* table : tables()) {
    for (const Case& c : {Case{1, 1, 1, false, false},
                          {7, 70, 33, false, true},
                          {29, 130, 256, true, false},
                          {64, 64, 17, true, true}}) {
      SCOPED_TRACE(std::string(table->isa) + " " + std::to_string(c.m));
      Rng rng(3, static_cast<uint64_t>(c.m));
      std::vector<float> a(static_cast<size_t>(c.m * c.depth)), b(static_cast<size_t>(c.depth * c.n));
      for (float& v : a) v = static_cast<float>(rng.uniform() - 0.5);
      for (float& v : b) v = static_cast<float>(rng.uniform() - 0.5);
      const int64_t a_row = c.trans_a ? 1 : c.depth, a_column = c.trans_a ? c.m : 1;
      const int64_t b_row = c.trans_b ? 1 : c.n, b_column = c.trans_b ? c.depth : 1;
      std::vector<float> packed(static_cast<size_t>((c.m + table->gemm_rows) * c.depth)),
          result(static_cast<size_t>(c.m * c.n), 1.0f);
      table->gemm_pack(a.data(), a_row, a_column, c.m, c.depth, packed.data());
      table->gemm_block(packed.data(), c.m, c.depth, b.data(), b_row, b_column, c.n, result.data(), c.n,
                        /*accumulate=*/1, scratch);
      for (int64_t i = 0; i < c.m; ++i) {
        for (int64_t j = 0; j < c.n; ++j) {
          double exact = 1;
          for (int64_t p = 0; p < c.depth; ++p)
            exact += static_cast<double>(a[static_cast<size_t>(i * a_row + p * a_column)]) *
                     static_cast<double>(b[static_cast<size_t>(p * b_row + j * b_column)]);
          ASSERT_NEAR(static_cast<double>(result[static_cast<size_t>(i * c.n + j)]), exact, 1e-5)
              << i << "," << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::peer::cpu
