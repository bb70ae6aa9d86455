#include "replicas/gradient_codec.h"

#include <string>

namespace weft::replicas {

using compress::Codec;
using compress::Kind;

namespace {

const char* why_not(const Codec& codec) {
  if (codec.kind == Kind::Float16 || codec.kind == Kind::BFloat16)
    return " rounds equal numbers always the same way, and over many steps such errors add up";
  if (codec.floor_bits > 0) return " is for local steps (every: 30)";
  return " leaves out most of a gradient, which would be lost: only replicas that make local steps (every: "
         "30) keep what they leave out and send it later";
}

}  // namespace

Status check_gradient_codec(const Codec& codec) {
  if (codec.kind == Kind::Dense || codec.kind == Kind::Blocks) return {};
  return fail(ErrorCode::InvalidArgument,
              compress::name(codec) + why_not(codec) +
                  "; for each step's gradients there are dense, int8, int6, int5, int4 and int3");
}

Codec gradient_codec(const Codec& codec, size_t count) {
  if (codec.kind == Kind::Dense || count > compress::kMaxCount) return {};
  return compress::wire_bytes(codec, count) < count * sizeof(float) ? codec : Codec{};
}

}  // namespace weft::replicas
