// weft_made_data FOLDER: what tests/e2e/formats.sh trains on: photos of three classes in all formats, a
// table, arrays, and a small model for the table.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/npy.h"
#include "tests/onnx/models.h"
#include "tests/support/photos.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kSamples = 48;

void write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string photo(uint32_t i) {
  const test::Picture picture = test::picture(20 + i % 7 * 5, 20 + i % 5 * 6, i);
  switch (i % 6) {
    case 0:
      return test::png(picture, test::PngKind::Deep);
    case 1:
      return test::png(picture, test::PngKind::Grey);
    case 2:
      return test::webp(picture);
    case 3:
      return test::jpeg(picture, test::JpegKind::Cmyk);
    case 4:
      return test::jpeg_with_exif(test::jpeg(picture), 1 + static_cast<int>(i % 8));
    default:
      return test::jpeg(picture, test::JpegKind::Progressive);
  }
}

std::string extension(uint32_t i) { return i % 6 < 2 ? ".png" : i % 6 == 2 ? ".webp" : ".jpg"; }

template <typename T>
std::string npy(dag::DType dtype, const dag::Shape& shape, const std::vector<T>& values) {
  return data::npy_header({dtype, shape}) +
         std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

void write_arrays(const fs::path& folder) {
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
  for (uint32_t i = 0; i < kSamples; ++i) {
    const test::Picture picture = test::picture(18, 18, i);
    for (size_t c = 0; c < 3; ++c)
      for (size_t p = 0; p < 18 * 18; ++p) pixels.push_back(picture.pixels[p * 3 + c]);
    labels.push_back(static_cast<int32_t>(i % 10));
  }
  write(folder / "image.npy", npy(dag::DType::U8, {kSamples, 3, 18, 18}, pixels));
  write(folder / "label.npy", npy(dag::DType::I32, {kSamples}, labels));
}

void write_table(const fs::path& folder) {
  std::string table = "\xEF\xBB\xBFheight;\"age\";kind;wealth\r\n";
  const char* kinds[] = {"owl", "cat", "dog"};
  for (uint32_t i = 0; i < kSamples; ++i)
    table += std::to_string(std::sin(i)) + ";" + std::to_string(i * 7 % 50) + ";\"" + kinds[i % 3] + "\";" +
             (i % 9 == 4 ? "" : std::to_string(i * 31 % 17)) + "\r\n";
  write(folder / "table.csv", table);
}

void vary(weft::onnx::pb::TensorProto& weight) {
  std::vector<float> values(weight.raw_data().size() / sizeof(float));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 0.4f * std::sin(static_cast<float>(3 * i + values.size()));
  weight.set_raw_data(values.data(), values.size() * sizeof(float));
}

// Of three numbers, with three classes.
void write_model(const fs::path& folder) {
  weft::onnx::testing::ModelMaker model;
  model.input("x", {-1, 3}).output("logits");
  vary(model.weight("w1", {3, 8}));
  vary(model.weight("b1", {8}));
  vary(model.weight("w2", {8, 8}));
  vary(model.weight("w3", {8, 3}));
  model.node("MatMul", {"x", "w1"}, {"h1"});
  model.node("Add", {"h1", "b1"}, {"h2"});
  model.node("Relu", {"h2"}, {"h3"});
  model.node("MatMul", {"h3", "w2"}, {"h4"});
  model.node("Relu", {"h4"}, {"h5"});
  model.node("MatMul", {"h5", "w3"}, {"logits"});
  write(folder / "table.onnx", model.bytes());
}

void write_all(const fs::path& folder) {
  const char* classes[] = {"owl", "cat", "dog"};
  for (uint32_t i = 0; i < kSamples; ++i)
    write(folder / "photos" / classes[i % 3] / (std::to_string(i) + extension(i)), photo(i));
  write_arrays(folder);
  write_table(folder);
  write_model(folder);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc == 2) {
    weft::write_all(argv[1]);
    return 0;
  }
  std::fprintf(stderr, "usage: weft_made_data FOLDER\n");
  return 2;
}
