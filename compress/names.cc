// What a codec is called, and which values are codecs.
#include <array>

#include "compress/codec.h"

namespace weft::compress {
namespace {

constexpr std::array<std::string_view, 4> kValuesNames = {"fp32", "fp16", "int8", "int4"};

bool is_block_bits(uint8_t bits) { return (bits >= 3 && bits <= 6) || bits == 8; }
bool keeps_some(Kind kind) { return kind == Kind::TopK || kind == Kind::RandomK; }

tl::unexpected<Error> invalid(std::string why) { return fail(ErrorCode::InvalidArgument, std::move(why)); }

// per_million / 10^(6 - digits), without trailing zeros: 10'000 of 6 digits is 0.01, of 4 digits 1.
std::string decimal(uint32_t per_million, int digits) {
  uint32_t unit = 1;
  for (int i = 0; i < digits; ++i) unit *= 10;
  std::string text = std::to_string(per_million / unit);
  if (per_million % unit == 0) return text;
  std::string fraction = std::to_string(unit + per_million % unit).substr(1);
  fraction.erase(fraction.find_last_not_of('0') + 1);
  return text + "." + fraction;
}

// A density in millionths from "0.01" or "1"; 0 if it is none. Read digit by digit, so that it is exact.
uint32_t parse_density(std::string_view text) {
  const size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const std::string_view fraction = point == text.npos ? std::string_view() : text.substr(point + 1);
  if ((whole != "0" && whole != "1") || fraction.size() > 6 || (point != text.npos && fraction.empty()))
    return 0;
  uint32_t value = whole == "1" ? 1 : 0;
  for (size_t i = 0; i < 6; ++i) {
    const char digit = i < fraction.size() ? fraction[i] : '0';
    if (digit < '0' || digit > '9') return 0;
    value = value * 10 + static_cast<uint32_t>(digit - '0');
  }
  return value <= 1'000'000 ? value : 0;
}

// "int4" to 4; 0 if it is not one of the sizes of Blocks.
uint8_t parse_bits(std::string_view text) {
  if (text.size() != 4 || !text.starts_with("int")) return 0;
  const auto bits = static_cast<uint8_t>(text[3] - '0');
  return is_block_bits(bits) ? bits : 0;
}

// "DENSITY:VALUES" or, of TopK, "DENSITY:VALUES+intN".
std::optional<Codec> parse_kept(Kind kind, std::string_view text) {
  Codec codec{.kind = kind};
  const size_t colon = text.find(':');
  if (colon == text.npos) return std::nullopt;
  codec.per_million = parse_density(text.substr(0, colon));
  text.remove_prefix(colon + 1);
  const size_t plus = text.find('+');
  if (plus != text.npos) {
    codec.floor_bits = parse_bits(text.substr(plus + 1));
    if (codec.floor_bits == 0) return std::nullopt;
  }
  text = text.substr(0, plus);
  for (size_t i = 0; i < kValuesNames.size(); ++i)
    if (text == kValuesNames[i]) {
      codec.values = static_cast<Values>(i);
      return codec;
    }
  return std::nullopt;
}

std::optional<Codec> parse_any(std::string_view text) {
  if (text == "dense") return Codec{};
  if (text == "fp16") return Codec{.kind = Kind::Float16};
  if (text == "bf16") return Codec{.kind = Kind::BFloat16};
  if (text.starts_with("topk:")) return parse_kept(Kind::TopK, text.substr(5));
  if (text.starts_with("randomk:")) return parse_kept(Kind::RandomK, text.substr(8));
  Codec codec{.kind = Kind::Blocks};
  codec.masks_zeros = text.ends_with('z');
  codec.bits = parse_bits(text.substr(0, text.size() - (codec.masks_zeros ? 1 : 0)));
  return codec.bits == 0 ? std::nullopt : std::optional(codec);
}

std::string values_name(const Codec& codec) {
  return std::string(kValuesNames[static_cast<size_t>(codec.values)]);
}

}  // namespace

Status check(const Codec& codec) {
  if (codec.kind > Kind::RandomK)
    return invalid("no codec has the kind " + std::to_string(static_cast<int>(codec.kind)));
  if (codec.values > Values::I4)
    return invalid("no codec has the values " + std::to_string(static_cast<int>(codec.values)));
  if (codec.kind == Kind::Blocks && !is_block_bits(codec.bits))
    return invalid("blocks have 8, 6, 5, 4 or 3 bits, not " + std::to_string(codec.bits));
  if (codec.kind != Kind::Blocks && (codec.bits != 0 || codec.masks_zeros))
    return invalid("bits and masks_zeros are options of blocks alone");
  if (codec.floor_bits != 0 && (codec.kind != Kind::TopK || !is_block_bits(codec.floor_bits)))
    return invalid("a floor is an option of topk alone, of 8, 6, 5, 4 or 3 bits");
  if (keeps_some(codec.kind) && (codec.per_million == 0 || codec.per_million > 1'000'000))
    return invalid("a density lies above 0, at most at 1, in millionths; it is " +
                   decimal(codec.per_million, 6));
  if (!keeps_some(codec.kind) && (codec.per_million != 0 || codec.values != Values::F32))
    return invalid("density and values are options of topk and randomk alone");
  return {};
}

std::string name(const Codec& codec) {
  switch (codec.kind) {
    case Kind::Dense:
      return "dense";
    case Kind::Float16:
      return "fp16";
    case Kind::BFloat16:
      return "bf16";
    case Kind::Blocks:
      return "int" + std::to_string(codec.bits) + (codec.masks_zeros ? "z" : "");
    case Kind::TopK:
      return "topk:" + decimal(codec.per_million, 6) + ":" + values_name(codec) +
             (codec.floor_bits == 0 ? "" : "+int" + std::to_string(codec.floor_bits));
    case Kind::RandomK:
      return "randomk:" + decimal(codec.per_million, 6) + ":" + values_name(codec);
  }
  return "?";
}

std::string describe(const Codec& codec) {
  const std::string share = decimal(codec.per_million, 4) + "% as " + values_name(codec);
  if (codec.kind == Kind::TopK)
    return "top " + share + (codec.floor_bits == 0 ? "" : " over int" + std::to_string(codec.floor_bits));
  if (codec.kind == Kind::RandomK) return "random " + share;
  if (codec.masks_zeros) return "int" + std::to_string(codec.bits) + " of what is not zero";
  return name(codec);
}

Result<Codec> parse(std::string_view text) {
  const std::optional<Codec> codec = parse_any(text);
  if (codec && check(*codec)) return *codec;
  return invalid("\"" + std::string(text) +
                 "\" is no codec: dense, fp16, bf16, int8, int6, int5, int4, int3 (with z: zeros masked), "
                 "topk:DENSITY:VALUES, topk:DENSITY:VALUES+int4 or randomk:DENSITY:VALUES, with a density in "
                 "(0, 1] of at most six decimals and fp32, fp16, int8 or int4 as values");
}

}  // namespace weft::compress
