#include "proto/codec/wire.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace weft::proto {

// ---- parts that several families use

void put(const dag::TensorSpec& from, wire::TensorSpec& to) {
  to.set_dtype(put_enum<wire::DType>(from.dtype));
  put_plain(from.shape, *to.mutable_dims());
}
Status get(const wire::TensorSpec& from, dag::TensorSpec& to) {
  Reader read("TensorSpec");
  read.enumerator(from.dtype(), to.dtype, dag::DType::Bool, "dtype");
  read.numbers(from.dims(), to.shape, kDimsMax, "dims");
  WEFT_TRY_STATUS(read.status());
  WEFT_TRY_STATUS(dag::checked_element_count(to.shape));
  return {};
}

void put(const TensorReference& from, wire::TensorReference& to) {
  to.set_initializer(from.key.name);
  to.set_slot(std::string(to_string(from.key.slot)));
  put(from.spec, *to.mutable_spec());
  to.set_sha256(put_bytes(from.sha256));
  to.set_replica(from.key.replica);
}
Status get(const wire::TensorReference& from, TensorReference& to) {
  Reader read("TensorReference");
  read.text(from.initializer(), to.key.name, kSymbolMax, "initializer");
  const auto slot = dag::find_state_slot(from.slot());
  read.require(slot || from.slot().empty(), "slot", "there is no such slot");
  to.key.slot = slot.value_or(dag::StateSlot::None);
  read.part(from.spec(), to.spec, "spec");
  read.digest(from.sha256(), to.sha256, "sha256");
  read.require(from.replica() < kReplicasMax, "replica", "not below 1024");
  to.key.replica = from.replica();
  return read.status();
}

namespace {

constexpr int kUnitsMax = 64;
constexpr double kUnitRateMin = 1, kUnitRateMax = 1e18;

plan::UnitRates within_bounds(plan::UnitRates rates) {
  for (double* rate : {&rates.small_flops_per_second, &rates.flops_per_second, &rates.small_bytes_per_second,
                       &rates.bytes_per_second})
    *rate = std::clamp(*rate, kUnitRateMin, kUnitRateMax);
  return rates;
}

Status get(const wire::UnitRates& from, plan::UnitRates& to) {
  Reader read("UnitRates");
  const auto rate = [&](double number, double& into, std::string_view field) {
    read.require(number >= kUnitRateMin && number <= kUnitRateMax, field, "not from 1 to 1e18");
    into = number;
  };
  rate(from.small_flops_per_second(), to.small_flops_per_second, "small_flops_per_second");
  rate(from.flops_per_second(), to.flops_per_second, "flops_per_second");
  rate(from.small_bytes_per_second(), to.small_bytes_per_second, "small_bytes_per_second");
  rate(from.bytes_per_second(), to.bytes_per_second, "bytes_per_second");
  return read.status();
}

}  // namespace

void put(const plan::Rates& from, wire::Rates& to) {
  to.set_matmul_flops_per_second(from.matmul_flops_per_second);
  to.set_convolution_flops_per_second(from.convolution_flops_per_second);
  to.set_memory_bytes_per_second(from.memory_bytes_per_second);
  to.set_kernel_seconds(from.kernel_seconds);
  if (!from.by_unit()) return;
  for (size_t i = 0; i < plan::kUnitCount; ++i) {
    const plan::UnitRates& rates = from.units[i];
    wire::UnitRates& unit = *to.add_units();
    unit.set_unit(std::string(to_string(static_cast<plan::Unit>(i))));
    unit.set_small_flops_per_second(rates.small_flops_per_second);
    unit.set_flops_per_second(rates.flops_per_second);
    unit.set_small_bytes_per_second(rates.small_bytes_per_second);
    unit.set_bytes_per_second(rates.bytes_per_second);
  }
}
Status get(const wire::Rates& from, plan::Rates& to) {
  Reader read("Rates");
  read.positive(from.matmul_flops_per_second(), to.matmul_flops_per_second, "matmul_flops_per_second");
  read.positive(from.convolution_flops_per_second(), to.convolution_flops_per_second,
                "convolution_flops_per_second");
  read.positive(from.memory_bytes_per_second(), to.memory_bytes_per_second, "memory_bytes_per_second");
  read.not_negative(from.kernel_seconds(), to.kernel_seconds, "kernel_seconds");
  read.require(from.units_size() <= kUnitsMax, "units", "more than 64");
  WEFT_TRY_STATUS(read.status());
  to.units = {};
  for (size_t i = 0; i < plan::kUnitCount && from.units_size() > 0; ++i)
    to.units[i] = within_bounds(plan::rates_of_four(static_cast<plan::Unit>(i), to));
  for (const wire::UnitRates& rates : from.units())
    for (size_t i = 0; i < plan::kUnitCount; ++i)
      if (rates.unit() == to_string(static_cast<plan::Unit>(i))) WEFT_TRY_STATUS(get(rates, to.units[i]));
  return read.status();
}

void put(const LinkUse& from, wire::LinkUse& to) {
  put_seat(from.seat, to);
  to.set_bytes_sent(from.bytes_sent);
  to.set_seconds_waiting(from.seconds_waiting);
  to.set_bytes_timed(from.bytes_timed);
  to.set_seconds_timed(from.seconds_timed);
  to.set_fastest_bytes_per_second(from.fastest_bytes_per_second);
  to.set_bytes_dense(from.bytes_dense);
  to.set_bytes_encoded(from.bytes_encoded);
  to.set_errors(from.errors);
  to.set_error_sum(from.error_sum);
  to.set_way(static_cast<wire::LinkWay>(from.way));
}
Status get(const wire::LinkUse& from, LinkUse& to) {
  Reader read("LinkUse");
  read.seat(from.stage(), from.replica(), to.seat, "stage");
  to.bytes_sent = from.bytes_sent();
  read.not_negative(from.seconds_waiting(), to.seconds_waiting, "seconds_waiting");
  to.bytes_timed = from.bytes_timed();
  read.not_negative(from.seconds_timed(), to.seconds_timed, "seconds_timed");
  read.not_negative(from.fastest_bytes_per_second(), to.fastest_bytes_per_second, "fastest_bytes_per_second");
  to.bytes_dense = from.bytes_dense();
  to.bytes_encoded = from.bytes_encoded();
  to.errors = from.errors();
  read.not_negative(from.error_sum(), to.error_sum, "error_sum");
  if (from.way() == wire::LINK_WAY_DIRECT) to.way = LinkWay::Direct;
  if (from.way() == wire::LINK_WAY_RELAY) to.way = LinkWay::Relay;
  return read.status();
}

// ---- Reader

void Reader::refuse(ErrorCode code, std::string_view field, const std::string& why) {
  if (good()) status_ = fail(code, std::string(message_) + "." + std::string(field) + ": " + why);
}

void Reader::within(Status status, std::string_view field, int index) {
  if (status) return;
  std::string place = std::string(message_) + "." + std::string(field);
  if (index >= 0) place += "[" + std::to_string(index) + "]";
  status_ = fail(status.error().within(place));
}

bool Reader::in_range(int from, bool below_last, std::string_view field) {
  if (good() && (from < 1 || !below_last))
    refuse(ErrorCode::OutOfRange, field, "enumerator " + std::to_string(from) + " is unknown");
  return good();
}

bool Reader::count(int count, size_t count_max, std::string_view field) {
  if (good() && static_cast<size_t>(count) > count_max)
    refuse(ErrorCode::OutOfRange, field,
           std::to_string(count) + " entries; at most " + std::to_string(count_max) + " are allowed");
  return good();
}

void Reader::text(const std::string& from, std::string& to, size_t size_max, std::string_view field) {
  if (!good()) return;
  if (from.size() > size_max)
    return refuse(
        ErrorCode::OutOfRange, field,
        std::to_string(from.size()) + " bytes; at most " + std::to_string(size_max) + " are allowed");
  to = from;
}

void Reader::name(const std::string& from, std::string& to, std::string_view field) {
  text(from, to, kNameMax, field);
  to = printable(to, Lines::One);
}

void Reader::message(const std::string& from, std::string& to, std::string_view field) {
  text(from, to, kTextMax, field);
  to = printable(to, Lines::Many);
}

void Reader::secret(const std::string& from, Secret& to, std::string_view field) {
  if (from.size() != to.size()) return refuse(ErrorCode::OutOfRange, field, "a secret has 16 bytes");
  std::memcpy(to.data(), from.data(), to.size());
}

void Reader::digest(const std::string& from, Digest& to, std::string_view field) {
  if (from.size() != to.bytes.size()) return refuse(ErrorCode::OutOfRange, field, "a digest has 32 bytes");
  std::memcpy(to.bytes.data(), from.data(), to.bytes.size());
}

void Reader::digest(const std::string& from, std::optional<Digest>& to, std::string_view field) {
  to.reset();
  if (!from.empty()) digest(from, to.emplace(), field);
}

void Reader::bytes(uint64_t from, Bytes& to, std::string_view field) {
  require(from <= static_cast<uint64_t>(kBytesMax), field, "more than 2^60 bytes");
  if (good()) to.value = static_cast<int64_t>(from);
}

void Reader::duration(uint64_t nanoseconds, Duration& to, std::string_view field) {
  require(nanoseconds <= static_cast<uint64_t>(kBytesMax), field, "more than 2^60 nanoseconds");
  if (good()) to = Duration(static_cast<int64_t>(nanoseconds));
}

void Reader::stage(uint32_t from, uint32_t& to, std::string_view field) {
  require(from < kStagesMax, field, "a stage is below 1024");
  to = from;
}

void Reader::seat(uint32_t stage, uint32_t replica, plan::Seat& to, std::string_view field) {
  require(stage < kStagesMax && replica < kReplicasMax, field, "a stage and its replica are below 1024");
  to = {stage, replica};
}

void Reader::codec(const std::string& name, compress::Codec& to, std::string_view field) {
  require(name.size() <= kNameMax, field, "longer than a name");
  if (!good() || name.empty()) return;
  if (auto parsed = compress::parse(name))
    to = *parsed;
  else
    refuse(ErrorCode::Unsupported, field, parsed.error().message);
}

void Reader::size(uint64_t from, uint64_t& to, std::string_view field) {
  require(from <= kBlobSizeMax, field, "more than 2^43 bytes");
  to = from;
}

void Reader::finite(double from, double& to, std::string_view field) {
  require(std::isfinite(from), field, "not a finite number");
  to = from;
}

void Reader::not_negative(double from, double& to, std::string_view field) {
  require(std::isfinite(from) && from >= 0, field, "not a finite number of at least 0");
  to = from;
}

void Reader::positive(double from, double& to, std::string_view field) {
  require(std::isfinite(from) && from > 0, field, "not a finite number above 0");
  to = from;
}

}  // namespace weft::proto
