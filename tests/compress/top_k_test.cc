// TopK: what is selected, against sorting; positions against their definition; values; reuse of positions.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "compress/positions.h"
#include "compress/select.h"
#include "compress/values.h"
#include "tests/compress/cases.h"

namespace weft::compress {
namespace {

uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffff; }

// By sorting all indices: larger magnitudes first, of equals the lower index.
std::vector<uint32_t> naive_largest(const std::vector<float>& x, size_t k) {
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                    [&](uint32_t a, uint32_t b) {
                      return magnitude(x[a]) != magnitude(x[b]) ? magnitude(x[a]) > magnitude(x[b]) : a < b;
                    });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<uint32_t> selected(const std::vector<float>& x, size_t k) {
  Scratch scratch;
  Arena arena(scratch.take(select_scratch_bytes(x.size(), k)));
  const Selected all = select_largest(x, k, arena);
  for (size_t i = 0; i < k; ++i)
    EXPECT_EQ(all.bits[i], std::bit_cast<uint32_t>(x[all.index[i]]));  // -0 stays what it is
  return {all.index.begin(), all.index.end()};
}

void expect_same_selection(const std::vector<float>& x, size_t k, const std::string& what) {
  const auto expected = naive_largest(x, k);
  for (const LoopTable* table : all_loops()) {
    const ForcedLoops forced(*table);
    ASSERT_EQ(selected(x, k), expected) << what << " k " << k << " of " << x.size() << " " << table->isa;
  }
}

TEST(TopK, SelectsWhatSortingSelects) {
  const uint64_t seed = seed_of_run();
  SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed));
  for (const Data data : kData)
    for (const size_t count : kCounts)
      for (const size_t k : {size_t{1}, count / 100, count / 10, count / 2, count - 1, count})
        if (k > 0 && k <= count && (count < 5000 || k < count / 2 || data == Data::Normal))
          expect_same_selection(tensor(data, count, seed), k,
                                "data " + std::to_string(static_cast<int>(data)));
}

// Long enough that the threshold is guessed.
TEST(TopK, SelectsTheSameFromASample) {
  const uint64_t seed = seed_of_run();
  SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed));
  for (const Data data : {Data::Normal, Data::HeavyTail, Data::Relu, Data::Levels, Data::Zero})
    for (const size_t k : {1, 50, 4'000, 40'000, 140'000})
      expect_same_selection(tensor(data, 400'003, seed), k, "data " + std::to_string(static_cast<int>(data)));
}

// All that is large lies where the sample does not look, or only there: the guess is of no use.
TEST(TopK, SelectsTheSameFromAMisleadingSample) {
  std::vector<float> late(400'000, 1.0f), early(400'000, 1.0f);
  for (size_t i = 0; i < 100'000; ++i) {
    late[i * 4 + 3] = 2.0f + static_cast<float>(i);
    early[i] = 5.0f + static_cast<float>(i % 1000);
  }
  for (const size_t k : {1'000, 50'000, 100'000, 150'000}) {
    expect_same_selection(late, k, "late");
    expect_same_selection(early, k, "early");
  }
  // Every element that the sample reads (select.cc) is zero; then all others are.
  const size_t count = 262'144, stretch = count / 16384;
  std::vector<float> hidden(count, 3.0f), faint(count, 3.0f), shown(count, 0.0f);
  for (size_t run = 0; run < 16384; ++run) {
    const uint32_t hash = static_cast<uint32_t>(run + 1) * 0x9E3779B9u;
    for (size_t i = 0; i < 4; ++i) {
      const size_t at = run * stretch + ((uint64_t{hash} * (stretch - 3)) >> 32) + i;
      hidden[at] = 0;
      faint[at] = 1e-3f;  // so that far more than there is room for lie above
      shown[at] = 1.0f + static_cast<float>(at);
    }
  }
  for (const size_t k : {1, 2'000, 60'000, 100'000}) {
    expect_same_selection(hidden, k, "hidden");
    expect_same_selection(faint, k, "faint");
    expect_same_selection(shown, k, "shown");
  }
}

TEST(TopK, TiesKeepLowestIndex) {
  EXPECT_EQ(selected({1, -2, 2, 0, -2, 2}, 3), (std::vector<uint32_t>{1, 2, 4}));
  EXPECT_EQ(selected({0.0f, -0.0f, 0.0f}, 2), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(selected(std::vector<float>(1000, 7), 10).back(), 9u);
}

TEST(TopK, KeepsAsManyAsTheDensitySays) {
  const Codec one = codec_of("topk:0.01:fp32"), half = codec_of("topk:0.5:fp32"),
              all = codec_of("topk:1:fp32");
  EXPECT_EQ(kept(one, 0), 0u);
  EXPECT_EQ(kept(one, 1), 1u);
  EXPECT_EQ(kept(one, 149), 1u);
  EXPECT_EQ(kept(one, 150), 2u);
  EXPECT_EQ(kept(one, kMaxCount), 21474836u);
  EXPECT_EQ(kept(half, 3), 2u);
  EXPECT_EQ(kept(all, kMaxCount), kMaxCount);
}

TEST(TopK, KeepsTheLargestAndZeroesTheRest) {
  for (const Data data : kData)
    for (const size_t count : {1, 2, 63, 64, 65, 1000, 100'007}) {
      const Codec codec = codec_of("topk:0.1:fp32");
      const auto x = tensor(data, count, 9), y = round_trip(codec, x);
      std::vector<float> expected(count);
      for (const uint32_t i : naive_largest(x, kept(codec, count))) expected[i] = x[i];
      ASSERT_EQ(std::memcmp(y.data(), expected.data(), count * 4), 0)
          << static_cast<int>(data) << " " << count;
    }
}

TEST(TopK, AFloorCarriesTheRest) {
  const auto x = tensor(Data::HeavyTail, 100'007, 3);
  const Draw draw{.seed = 5};
  const auto with = round_trip(codec_of("topk:0.01:fp32+int4"), x, draw);
  const auto without = round_trip(codec_of("topk:0.01:fp32"), x, draw);
  auto rest = x;
  for (size_t i = 0; i < x.size(); ++i) {
    if (without[i] == 0) continue;
    EXPECT_EQ(with[i], x[i]);
    rest[i] = 0;
  }
  const auto floor = round_trip(codec_of("int4"), rest, draw);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(with[i], without[i] == 0 ? floor[i] : x[i]) << i;
  EXPECT_LT(relative_error(x, with), 0.2 * relative_error(x, without));
}

// The cotangent is sent at the activation's positions.
TEST(TopK, PositionsAreUsedAgain) {
  for (const char* text :
       {"topk:0.01:fp32", "topk:0.1:fp16", "topk:0.3:int8", "topk:0.02:fp16+int4", "topk:1:int4"})
    for (const size_t count : {1, 100, 1000, 100'007}) {
      const Codec codec = codec_of(text);
      const auto x = tensor(Data::Normal, count, 1), dx = tensor(Data::HeavyTail, count, 2);
      const Draw forward{.seed = 1}, backward{.seed = 1, .backward = true};
      std::vector<uint32_t> places(kept(codec, count));
      ASSERT_TRUE(positions(codec, count, encoded(codec, x, forward), places));
      ASSERT_EQ(places, naive_largest(x, places.size()));
      Bytes payload(wire_bytes_at(codec, count));
      Scratch scratch;
      ASSERT_EQ(encode_at(codec, dx, places, backward, payload, scratch), payload.size());
      EXPECT_LE(scratch.bytes(), scratch_bytes(codec, count));
      EXPECT_EQ(payload.size() + position_format(count, places.size()).bytes(), wire_bytes(codec, count));
      std::vector<float> y(count);
      ASSERT_TRUE(decode_at(codec, places, {}, payload, y));
      // As if the largest had been there.
      const Codec exact = codec_of("topk:0.01:fp32");
      for (size_t i = 0, p = 0; i < count; ++i) {
        const bool sent = p < places.size() && places[p] == i;
        p += sent ? 1 : 0;
        if (codec.per_million == exact.per_million && codec.values == Values::F32) {
          ASSERT_EQ(y[i], sent ? dx[i] : 0);
        }
        if (!sent && codec.floor_bits == 0) {
          ASSERT_EQ(y[i], 0);
        }
      }
      payload.pop_back();
      EXPECT_FALSE(decode_at(codec, places, {}, payload, y));
      auto bad = dx;
      bad[count / 2] = HUGE_VALF;
      payload.resize(wire_bytes_at(codec, count));
      EXPECT_FALSE(encode_at(codec, bad, places, backward, payload, scratch));
    }
}

// As decode does, whatever the bytes are.
TEST(TopK, PositionsOfABadPayloadAreRefused) {
  for (const char* text : {"topk:0.1:fp16", "topk:0.5:int4"}) {
    const Codec codec = codec_of(text);
    std::vector<uint32_t> places(kept(codec, 300));
    std::vector<float> y(300);
    Bytes payload = encoded(codec, tensor(Data::Normal, 300, 1));
    for (size_t bit = 0; bit < position_format(300, places.size()).bytes() * 8; ++bit) {
      payload[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      EXPECT_EQ(positions(codec, 300, payload, places).has_value(),
                decode(codec, {}, payload, y).has_value());
      payload[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    }
    payload.pop_back();
    EXPECT_FALSE(positions(codec, 300, payload, places));
  }
}

std::vector<uint32_t> some_positions(size_t count, size_t k, Rng& rng) {
  std::vector<uint32_t> all(count);
  std::iota(all.begin(), all.end(), 0u);
  for (size_t i = 0; i < k; ++i) std::swap(all[i], all[i + rng.below(count - i)]);
  all.resize(k);
  std::sort(all.begin(), all.end());
  return all;
}

TEST(Positions, ComeBack) {
  Rng rng(seed_of_run(), 4);
  for (const size_t count : {1, 2, 7, 8, 9, 64, 100, 1000, 50'000})
    for (const size_t k : {size_t{1}, count / 50, count / 9, count / 3, count / 2, count - 1, count}) {
      if (k == 0 || k > count) continue;
      const PositionFormat format = position_format(count, k);
      const auto expected = some_positions(count, k, rng);
      Bytes bytes(format.bytes());
      write_positions(format, expected, bytes);
      std::vector<uint32_t> found(k);
      PositionReader reader(format, bytes);
      ASSERT_TRUE(reader.next(std::span(found).first(k / 2)));
      ASSERT_TRUE(reader.next(std::span(found).subspan(k / 2)));
      EXPECT_TRUE(reader.at_end());
      EXPECT_EQ(found, expected) << k << " of " << count;
    }
}

TEST(Positions, TakeLessThanABitMoreThanTheirInformation) {
  const size_t count = 1 << 24;
  for (const double density : {0.0001, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.9}) {
    const auto k = static_cast<size_t>(static_cast<double>(count) * density);
    const double information = -(std::log2(density) + (1 - density) / density * std::log2(1 - density));
    const double bits = 8.0 * static_cast<double>(position_format(count, k).bytes()) / static_cast<double>(k);
    EXPECT_GE(bits, information) << density;
    EXPECT_LE(bits, std::min(information + 0.8, 1 / density + 0.01)) << density;
  }
  EXPECT_LT(position_format(kMaxCount, 1).bytes(), 10u);
  EXPECT_EQ(position_format(kMaxCount, kMaxCount).bytes(), 0u);
}

// Every payload that is taken is the one that write_positions makes of what was read: nothing else is
// accepted.
TEST(Positions, HaveOneSpelling) {
  Rng rng(seed_of_run(), 5);
  int taken = 0;
  for (int time = 0; time < 200'000; ++time) {
    const size_t count = 1 + rng.below(40), k = 1 + rng.below(count);
    const PositionFormat format = position_format(count, k);
    Bytes bytes(format.bytes());
    write_positions(format, some_positions(count, k, rng), bytes);
    for (uint64_t flips = rng.below(4); flips > 0 && !bytes.empty(); --flips)
      bytes[rng.below(bytes.size())] ^= static_cast<std::byte>(1u << rng.below(8));
    std::vector<uint32_t> found(k);
    PositionReader reader(format, bytes);
    if (!reader.next(found) || !reader.at_end()) continue;
    ++taken;
    ASSERT_TRUE(std::is_sorted(found.begin(), found.end(), std::less_equal<>()) || k == 1);
    ASSERT_LT(found.back(), count);
    Bytes again(format.bytes());
    write_positions(format, found, again);
    ASSERT_EQ(again, bytes);
  }
  EXPECT_GT(taken, 10'000);
}

TEST(Values, KeepSignsAndStayWithinAStep) {
  for (const Data data : {Data::Normal, Data::HeavyTail, Data::Equal, Data::Levels, Data::Huge})
    for (const size_t count : {1, 2, 3, 127, 128, 129, 1000}) {
      const auto x = tensor(data, count, 8);
      for (const Values values : {Values::I8, Values::I4}) {
        Bytes bytes(values_bytes(values, count));
        write_values(values, x, {}, bytes);
        for (size_t at = 0; at < count; at += 128) {
          std::vector<float> y(std::min<size_t>(128, count - at));
          ASSERT_TRUE(read_values(values, bytes, at, y));
          double low = HUGE_VAL, high = 0;
          for (size_t i = 0; i < y.size(); ++i) {
            low = std::min(low, std::abs(double{x[at + i]}));
            high = std::max(high, std::abs(double{x[at + i]}));
          }
          const double step = (high * 1.0079 - low * 0.992) / (values == Values::I8 ? 127 : 7);
          for (size_t i = 0; i < y.size(); ++i) {
            EXPECT_EQ(std::signbit(y[i]), std::signbit(x[at + i]));
            EXPECT_LE(std::abs(double{y[i]} - x[at + i]),
                      step * 1.00001 + high * 0.005 * (data == Data::Huge));
          }
        }
      }
    }
}

TEST(Values, AreUnbiased) {
  const uint64_t seed = seed_of_run();
  SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed));
  const auto x = tensor(Data::HeavyTail, 200, seed);
  for (const Values values : {Values::I8, Values::I4}) {
    constexpr int kTimes = 4000;
    std::vector<double> sum(x.size());
    Bytes bytes(values_bytes(values, x.size()));
    std::vector<float> y(x.size());
    for (int time = 0; time < kTimes; ++time) {
      write_values(values, x, {.seed = seed, .step = static_cast<uint64_t>(time)}, bytes);
      ASSERT_TRUE(read_values(values, bytes, 0, std::span(y).first(128)));
      ASSERT_TRUE(read_values(values, bytes, 128, std::span(y).subspan(128)));
      for (size_t i = 0; i < x.size(); ++i) {
        sum[i] += double{y[i]} - x[i];
      }
    }
    double chi = 0, elements = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      uint16_t ends[2];
      std::memcpy(ends, &bytes[i < 128 ? 0 : values_bytes(values, 128)], 4);
      const double low = std::bit_cast<float>(uint32_t{ends[0]} << 16);
      const double high = std::bit_cast<float>(uint32_t{ends[1]} << 16);
      const double step = (high - low) / (values == Values::I8 ? 127 : 7);
      const double share = std::fmod((std::abs(double{x[i]}) - low) / step, 1.0);
      const double variance = kTimes * share * (1 - share) * step * step;
      EXPECT_LT(std::abs(sum[i]), 5 * std::sqrt(variance) + 10 * step) << i;
      if (kTimes * share * (1 - share) < 20) continue;  // too rare for a normal distribution
      chi += sum[i] * sum[i] / variance;
      ++elements;
    }
    EXPECT_GT(elements, 150);
    EXPECT_LT(chi, elements + 6 * std::sqrt(2 * elements));
  }
}

}  // namespace
}  // namespace weft::compress
