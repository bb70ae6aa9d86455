#include "tests/fuzz/data_seeds.h"

#include <span>

#include "dag/tensor.h"
#include "data/npy.h"
#include "tests/support/photos.h"

namespace weft::fuzz {
namespace {

Seed seed(const std::string& name, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {name, {bytes.begin(), bytes.end()}};
}

std::vector<Seed> photo_seeds() {
  using test::JpegKind;
  using test::PngKind;
  const test::Picture picture = test::picture(13, 9);
  const std::string png = test::png(picture), jpeg = test::jpeg(picture);
  return {seed("png", png),
          seed("png_grey", test::png(picture, PngKind::GreyAlpha)),
          seed("png_palette", test::png(picture, PngKind::PaletteAlpha)),
          seed("png_deep", test::png(picture, PngKind::Deep)),
          seed("png_bit", test::png(picture, PngKind::OneBit)),
          seed("png_interlaced", test::png(picture, PngKind::Interlaced)),
          seed("png_exif", test::png_with_exif(png, 6)),
          seed("png_animated", test::animated_png(png)),
          seed("png_bomb", test::png_bomb(60000, 60000)),
          seed("jpeg", jpeg),
          seed("jpeg_grey", test::jpeg(picture, JpegKind::Grey)),
          seed("jpeg_progressive", test::jpeg(picture, JpegKind::Progressive)),
          seed("jpeg_cmyk", test::jpeg(picture, JpegKind::Cmyk)),
          seed("jpeg_exif", test::jpeg_with_exif(jpeg, 5)),
          seed("webp", test::webp(picture)),
          seed("webp_lossy", test::lossy_webp(picture)),
          seed("webp_alpha", test::alpha_webp(picture)),
          seed("webp_animated", test::animated_webp())};
}

std::vector<Seed> table_seeds() {
  return {seed("plain", "a,b\n1,2.5\n-3,1e4\n"),
          seed("quoted", "\xEF\xBB\xBF\"a\",\"b \"\"c\"\"\"\r\n1,\"x\ny\"\r\n2,z\r\n"),
          seed("classes", "a;kind\n1;dog\n\n2;cat\nNA;dog\n"),
          seed("tabs", "a\tb\r1,5\t\"\"\r"),
          seed("broken", "a,b\n1\n\"2,3\n"),
          seed("kinds", std::string("PK\x03\x04", 4) + std::string(22, '\0') + "\x09" + std::string(3, '\0') +
                            "m/data.pkl")};
}

std::vector<Seed> array_seeds() {
  std::vector<Seed> seeds;
  for (const dag::DType dtype : {dag::DType::U8, dag::DType::F32, dag::DType::F16, dag::DType::Bool}) {
    const dag::TensorSpec spec{dtype, {2, 3, 4, 3}};
    seeds.push_back(
        seed(std::string(to_string(dtype)),
             data::npy_header(spec) + std::string(static_cast<size_t>(spec.bytes().value), '\1')));
  }
  return seeds;
}

std::string in_safetensors(const std::string& json) {
  std::string head(8, '\0');
  for (size_t i = 0; i < head.size(); ++i) head[i] = static_cast<char>(json.size() >> (8 * i));
  return head + json;
}

// A text, an array, and a tensor in blocks of four bits.
std::string gguf_file() {
  const auto number = [](uint64_t value, size_t size) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  const auto text = [&](const std::string& of) { return number(of.size(), 8) + of; };
  std::string file = "GGUF" + number(3, 4) + number(1, 8) + number(2, 8);
  file += text("general.name") + number(8, 4) + text("m");
  file += text("tokens") + number(9, 4) + number(8, 4) + number(2, 8) + text("a") + text("bc");
  file += text("w") + number(2, 4) + number(32, 8) + number(2, 8) + number(2, 4) + number(0, 8);
  file.resize((file.size() + 31) / 32 * 32, '\0');
  return file + std::string(36, '<');
}

// The first byte chooses what the rest is: tests/fuzz/safetensors.cc.
std::vector<Seed> safetensors_seeds() {
  const std::string tensors =
      R"({"__metadata__":{"format":"pt"},"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("h.0.w":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]},)"
      R"("e":{"dtype":"BF16","shape":[0],"data_offsets":[16,16]}} )";
  const std::string index = R"({"metadata":{"total_size":16,"x":[{"y":null}]},)"
                            R"("weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})";
  return {seed("file", std::string(1, '\0') + in_safetensors(tensors) + "0123456789abcdef"),
          seed("gguf", std::string(1, '\0') + gguf_file()),
          seed("empty", std::string(1, '\0') + in_safetensors("{}")),
          seed("header", "\1\20" + tensors),
          seed("types",
               "\1\1"
               R"({"w":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})"),
          seed("index", "\2" + index),
          seed("escape",
               "\2"
               R"({"weight_map":{"a":"..\/w.safetensors"}})")};
}

}  // namespace

std::vector<Seed> data_seeds(std::string_view target) {
  if (target == "photos") return photo_seeds();
  if (target == "tables") return table_seeds();
  if (target == "npy_files") return array_seeds();
  if (target == "safetensors") return safetensors_seeds();
  return {};
}

}  // namespace weft::fuzz
