#include "storage/packed.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace weft::storage {

namespace {

static_assert(std::endian::native == std::endian::little);
constexpr size_t kPlanes = sizeof(uint32_t);
constexpr size_t kLengthSize = sizeof(uint32_t);
constexpr std::byte kAsItIs{0}, kPlaned{1};

uint32_t number_at(const std::byte* at) {
  uint32_t number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

uint32_t zigzag(uint32_t difference) {
  return (difference << 1) ^ static_cast<uint32_t>(static_cast<int32_t>(difference) >> 31);
}

uint32_t unzigzag(uint32_t number) { return (number >> 1) ^ (0 - (number & 1)); }

// Without a base the sign goes last, so that the exponent has a plane of its own.
uint32_t rotated(uint32_t number) { return std::rotl(number, 1); }
uint32_t unrotated(uint32_t number) { return std::rotr(number, 1); }

void take_apart(std::span<const std::byte> bytes, std::span<const std::byte> base,
                std::span<uint32_t> numbers, std::span<std::byte> planes) {
  const size_t count = numbers.size();
  std::memcpy(numbers.data(), bytes.data(), count * kPlanes);
  if (base.empty())
    for (uint32_t& number : numbers) number = rotated(number);
  else
    for (size_t i = 0; i < count; ++i) numbers[i] = zigzag(numbers[i] - number_at(base.data() + i * kPlanes));
  for (size_t plane = 0; plane < kPlanes; ++plane) {
    std::byte* to = planes.data() + plane * count;
    for (size_t i = 0; i < count; ++i) to[i] = static_cast<std::byte>(numbers[i] >> (8 * plane));
  }
}

void put_together(std::span<const std::byte> planes, std::span<const std::byte> base,
                  std::span<uint32_t> numbers, std::span<std::byte> bytes) {
  const size_t count = numbers.size();
  const std::byte* from = planes.data();
  for (size_t i = 0; i < count; ++i)
    numbers[i] = std::to_integer<uint32_t>(from[i]) | std::to_integer<uint32_t>(from[count + i]) << 8 |
                 std::to_integer<uint32_t>(from[2 * count + i]) << 16 |
                 std::to_integer<uint32_t>(from[3 * count + i]) << 24;
  if (base.empty())
    for (uint32_t& number : numbers) number = unrotated(number);
  else
    for (size_t i = 0; i < count; ++i)
      numbers[i] = number_at(base.data() + i * kPlanes) + unzigzag(numbers[i]);
  std::memcpy(bytes.data(), numbers.data(), count * kPlanes);
}

// Whether the bytes look like noise, by how often each value comes in some of them: what is lost is a pattern
// of bytes that are all as frequent, which floats do not make.
bool is_noise(std::span<const std::byte> plane) {
  constexpr size_t kSamples = 1 << 14, kEnough = 1 << 10;
  const size_t step = std::max<size_t>(plane.size() / kSamples, 1);
  std::array<uint32_t, 256> times{};
  size_t samples = 0;
  for (size_t i = 0; i < plane.size(); i += step, ++samples) ++times[std::to_integer<size_t>(plane[i])];
  if (samples < kEnough) return false;
  // The chance that two of them are equal: 1 / 256 of noise.
  double equal = 0;
  for (const uint32_t n : times) equal += static_cast<double>(n) * (static_cast<double>(n) - 1);
  return equal * 256 < 1.02 * static_cast<double>(samples) * static_cast<double>(samples - 1);
}

void put_length(std::byte* at, size_t length) {
  const auto value = static_cast<uint32_t>(length);
  std::memcpy(at, &value, sizeof value);
}

Error corrupted(const std::string& what) { return {ErrorCode::Corrupted, "a packed blob: " + what}; }

}  // namespace

// ---- packing

struct Packer::State {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  // Planes of floats have frequent bytes and no phrases: short matches only break up what the entropy coder
  // does better, and looking for them takes most of the time (0.375 of a plane at 750 MB/s for 0.41 at 290).
  State() {
    if (context == nullptr) return;
    for (const auto& [parameter, value] : {std::pair{ZSTD_c_compressionLevel, 1},
                                           {ZSTD_c_strategy, int{ZSTD_fast}},
                                           {ZSTD_c_minMatch, 7},
                                           {ZSTD_c_hashLog, 8}})
      WEFT_CHECK(ZSTD_isError(ZSTD_CCtx_setParameter(context, parameter, value)) == 0);
  }
  std::vector<uint32_t> numbers = std::vector<uint32_t>(kPackedUnit / kPlanes);
  std::vector<std::byte> planes = std::vector<std::byte>(kPackedUnit);
  ~State() { ZSTD_freeCCtx(context); }
};

Packer::Packer() = default;
Packer::~Packer() = default;

std::vector<std::byte> Packer::pack(std::span<const std::byte> bytes, std::span<const std::byte> base) {
  WEFT_CHECK(!bytes.empty() && bytes.size() <= kPackedUnit && (base.empty() || base.size() == bytes.size()));
  if (!state_) state_ = std::make_unique<State>();
  const size_t count = bytes.size() / kPlanes, tail = bytes.size() % kPlanes;
  std::vector<std::byte> unit(kPackedHeader + bytes.size());
  const auto close = [&](std::byte form, size_t size) {
    put_length(unit.data(), size + 1);
    unit[kLengthSize] = form;
    unit.resize(kPackedHeader + size);
  };
  constexpr size_t kLengths = kPlanes * kLengthSize;
  bool fits = state_->context != nullptr && count > 0 && bytes.size() > kLengths + tail;
  size_t size = kLengths;
  if (fits) take_apart(bytes, base, std::span(state_->numbers).first(count), state_->planes);
  for (size_t plane = 0; fits && plane < kPlanes; ++plane) {
    const std::byte* from = state_->planes.data() + plane * count;
    std::byte* to = unit.data() + kPackedHeader + size;
    const size_t room = bytes.size() - size - tail;
    // A frame as long as the plane would be taken for the plane.
    size_t length = count;
    if (!is_noise({from, count})) {
      length = ZSTD_compress2(state_->context, to, std::min(room, count - 1), from, count);
      if (ZSTD_isError(length) != 0) length = count;
    }
    if (length == count) {
      fits = room >= count;
      if (fits) std::memcpy(to, from, count);
    }
    put_length(unit.data() + kPackedHeader + plane * kLengthSize, length);
    size += length;
  }
  if (!fits || size + tail >= bytes.size()) {
    std::memcpy(unit.data() + kPackedHeader, bytes.data(), bytes.size());
    close(kAsItIs, bytes.size());
    return unit;
  }
  std::memcpy(unit.data() + kPackedHeader + size, bytes.data() + count * kPlanes, tail);
  close(kPlaned, size + tail);
  return unit;
}

// ---- where units end

Status PackedFraming::take(std::span<const std::byte> piece) {
  while (!piece.empty()) {
    if (unit_left_ > 0) {
      const size_t some = std::min(unit_left_, piece.size());
      unit_left_ -= some;
      piece = piece.subspan(some);
      continue;
    }
    if (left_ == 0) return fail(ErrorCode::OutOfRange, "a packed blob: bytes beyond its end");
    length_ |= std::to_integer<uint32_t>(piece[0]) << (8 * header_size_);
    piece = piece.subspan(1);
    if (++header_size_ < kLengthSize) continue;
    const auto size = std::min<uint64_t>(left_, kPackedUnit);
    if (length_ < 2 || length_ > size + 1)
      return fail(ErrorCode::OutOfRange, "a packed blob: a unit of " + std::to_string(length_) + " bytes");
    left_ -= size;
    unit_left_ = length_;
    length_ = 0;
    header_size_ = 0;
  }
  return {};
}

// ---- unpacking

struct Unpacker::State {
  uint64_t size, done = 0;  // bytes of the blob
  std::span<const std::byte> base;
  ZSTD_DCtx* context = ZSTD_createDCtx();
  std::vector<std::byte> waiting{};  // of a unit that has not come whole, its length first
  std::vector<std::byte> planes{}, bytes{};
  std::vector<uint32_t> numbers{};
  ~State() { ZSTD_freeDCtx(context); }
};

Unpacker::Unpacker(uint64_t size, std::span<const std::byte> base)
    : state_(new State{.size = size, .base = base}) {
  WEFT_CHECK(base.empty() || base.size() == size);
}
Unpacker::~Unpacker() = default;

bool Unpacker::is_complete() const { return state_->done == state_->size; }

Status Unpacker::take(std::span<const std::byte> piece,
                      const std::function<Status(std::span<const std::byte>)>& write) {
  State& state = *state_;
  while (!piece.empty()) {
    const size_t size = std::min<uint64_t>(state.size - state.done, kPackedUnit);
    if (size == 0) return fail(corrupted("bytes beyond its end"));
    size_t wanted = kLengthSize;
    if (state.waiting.size() >= kLengthSize) wanted += number_at(state.waiting.data());
    const size_t some = std::min(wanted - state.waiting.size(), piece.size());
    state.waiting.insert(state.waiting.end(), piece.begin(), piece.begin() + static_cast<ptrdiff_t>(some));
    piece = piece.subspan(some);
    if (state.waiting.size() < wanted) continue;
    if (wanted == kLengthSize) {
      const size_t length = number_at(state.waiting.data());
      if (length < 2 || length > size + 1)
        return fail(corrupted("a unit of " + std::to_string(length) + " bytes"));
      continue;
    }
    state.bytes.resize(size);
    WEFT_TRY_STATUS(unpack(std::span(state.waiting).subspan(kLengthSize), state.bytes));
    state.done += size;
    state.waiting.clear();
    WEFT_TRY_STATUS(write(state.bytes));
  }
  return {};
}

Status Unpacker::unpack(std::span<const std::byte> unit, std::span<std::byte> into) {
  State& state = *state_;
  const std::byte form = unit[0];
  unit = unit.subspan(1);
  if (form == kAsItIs) {
    if (unit.size() != into.size()) return fail(corrupted("a unit of another length than is left"));
    std::memcpy(into.data(), unit.data(), unit.size());
    return {};
  }
  if (form != kPlaned) return fail(corrupted("a unit of an unknown form"));
  const size_t count = into.size() / kPlanes, tail = into.size() % kPlanes;
  if (unit.size() < kPlanes * kLengthSize + tail || state.context == nullptr)
    return fail(corrupted("a unit without its planes"));
  std::array<size_t, kPlanes> lengths{};
  size_t total = kPlanes * kLengthSize + tail;
  for (size_t plane = 0; plane < kPlanes; ++plane)
    total += lengths[plane] = number_at(unit.data() + plane * kLengthSize);
  if (total != unit.size()) return fail(corrupted("planes that do not fill their unit"));
  state.planes.resize(count * kPlanes);
  state.numbers.resize(count);
  const std::byte* from = unit.data() + kPlanes * kLengthSize;
  for (size_t plane = 0; plane < kPlanes; from += lengths[plane++]) {
    std::byte* to = state.planes.data() + plane * count;
    if (lengths[plane] == count) {
      if (count > 0) std::memcpy(to, from, count);
    } else if (ZSTD_decompressDCtx(state.context, to, count, from, lengths[plane]) != count) {
      return fail(corrupted("a plane that cannot be decompressed"));
    }
  }
  const auto base = state.base.empty() ? state.base : state.base.subspan(state.done, into.size());
  put_together(state.planes, base, state.numbers, into);
  std::memcpy(into.data() + count * kPlanes, from, tail);
  return {};
}

}  // namespace weft::storage
