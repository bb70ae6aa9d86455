#include "tests/gpu/cases.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "storage/sha256.h"
#include "tests/backend/large_cases.h"
#include "tests/gpu/random_groups.h"

namespace weft::test {
namespace {

using dag::DType;
using dag::OpCase;
using dag::Tensor;

constexpr uint64_t kOpSeeds[] = {1, 2}, kGroups = 40;

bool is_library(dag::OpKind kind) {
  const dag::Family family = dag::op_table().row(kind).family;
  return family == dag::Family::MatMul || family == dag::Family::Convolution ||
         family == dag::Family::Recurrent;
}

GpuCase of_op(GpuCase::Kind kind, std::string name, const OpCase& op_case) {
  dag::OpCaseGraph made = dag::build_op_case(op_case);
  GpuCase c{.kind = kind,
            .name = std::move(name),
            .graph = made.builder.finish(),
            .apart = {},
            .wanted = made.outputs,
            .inputs = {},
            .tolerance = op_case.tolerance,
            .is_library = is_library(op_case.kind)};
  for (const auto& input : op_case.inputs)
    if (input) c.inputs.push_back(*input);
  return c;
}

void add_ops(std::vector<GpuCase>& cases) {
  for (const uint64_t seed : kOpSeeds)
    for (const OpCase& op_case : dag::all_op_cases(seed))
      cases.push_back(of_op(GpuCase::Kind::Op, op_case.name + ", seed " + std::to_string(seed), op_case));
}

void add_large(std::vector<GpuCase>& cases) {
  for (const OpCase& op_case : peer::large_cases())
    cases.push_back(of_op(GpuCase::Kind::Large, "large " + op_case.name, op_case));
}

void add_arithmetic(std::vector<GpuCase>& cases) {
  for (const OpCase& op_case : peer::large_cases()) {
    const dag::Family family = dag::op_table().row(op_case.kind).family;
    if (family != dag::Family::MatMul && family != dag::Family::Convolution) continue;
    for (const auto& [arithmetic, tolerance] :
         {std::pair{dag::Arithmetic::TF32, 2e-3}, {dag::Arithmetic::BF16, 1.5e-2}}) {
      GpuCase c =
          of_op(GpuCase::Kind::Arithmetic, std::string(to_string(arithmetic)) + " " + op_case.name, op_case);
      c.precision.compute = arithmetic;
      c.tolerance = tolerance;
      cases.push_back(std::move(c));
    }
  }
}

void add_groups(std::vector<GpuCase>& cases) {
  for (uint64_t seed = 1; seed <= kGroups; ++seed) {
    RandomGroup group = random_group(seed);
    GpuCase c{.kind = GpuCase::Kind::Group,
              .name = "group, seed " + std::to_string(seed),
              .graph = std::move(group.fused),
              .apart = std::move(group.apart),
              .wanted = {},
              .inputs = std::move(group.inputs)};
    for (const dag::GraphOutput& output : c.graph.outputs()) c.wanted.push_back(output.value);
    cases.push_back(std::move(c));
  }
}

// The bits of the one NaN, for elements with such an exponent and fraction.
template <typename Bits>
void make_nans_equal(std::span<std::byte> bytes, Bits exponent, Bits fraction) {
  for (size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + at, sizeof(Bits));
    if ((bits & exponent) != exponent || (bits & fraction) == 0) continue;
    bits = static_cast<Bits>(exponent | (exponent >> 1));
    std::memcpy(bytes.data() + at, &bits, sizeof(Bits));
  }
}

std::vector<std::byte> canonical(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes().begin(), tensor.bytes().end());
  switch (tensor.dtype()) {
    case DType::F32:
      make_nans_equal<uint32_t>(bytes, 0x7f800000u, 0x007fffffu);
      break;
    case DType::F64:
      make_nans_equal<uint64_t>(bytes, 0x7ff0000000000000u, 0x000fffffffffffffu);
      break;
    case DType::F16:
      make_nans_equal<uint16_t>(bytes, 0x7c00u, 0x03ffu);
      break;
    case DType::BF16:
      make_nans_equal<uint16_t>(bytes, 0x7f80u, 0x007fu);
      break;
    default:
      break;
  }
  return bytes;
}

}  // namespace

std::string_view to_string(GpuCase::Kind kind) {
  switch (kind) {
    case GpuCase::Kind::Op:
      return "ops";
    case GpuCase::Kind::Large:
      return "large shapes";
    case GpuCase::Kind::Arithmetic:
      return "TF32 and BF16";
    case GpuCase::Kind::Group:
      return "fused groups";
  }
  return "";
}

std::vector<GpuCase> gpu_cases() {
  std::vector<GpuCase> cases;
  add_ops(cases);
  add_large(cases);
  add_arithmetic(cases);
  add_groups(cases);
  return cases;
}

std::string digest_of(const Tensor& tensor) {
  storage::Sha256 sha;
  sha.update(dag::to_string(tensor.spec()) + "\n");
  sha.update(canonical(tensor));
  return sha.hex();
}

bool same_values(const Tensor& a, const Tensor& b) {
  return a.spec() == b.spec() && canonical(a) == canonical(b);
}

}  // namespace weft::test
