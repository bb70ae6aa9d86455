// weft_doc_data FILE.npz SAMPLES: images of ten kinds with noise, which the model of the examples learns:
// what the commands of the documents train on where they say "your data".
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "data/npz_writer.h"

namespace {

// A kind of image is bright in a cell of its own.
float pixel(uint64_t label, uint64_t row, uint64_t column, float noise) {
  const bool is_bright = row / 6 == label / 5 && column / 6 == label % 5;
  return (is_bright ? 1.0f : 0.0f) + noise;
}

}  // namespace

int main(int argc, char** argv) {
  using weft::dag::DType;
  const int64_t count = argc == 3 ? std::atoll(argv[2]) : 0;
  if (count <= 0 || count > 1'000'000) {
    std::fprintf(stderr, "usage: weft_doc_data FILE.npz SAMPLES\n");
    return 2;
  }
  weft::dag::Tensor images({DType::F32, {count, 1, 28, 28}}), labels({DType::U8, {count}});
  weft::Rng rng(static_cast<uint64_t>(count), 0);
  float* next = images.mutable_as<float>().data();
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t label = rng.below(10);
    labels.mutable_as<uint8_t>()[static_cast<size_t>(i)] = static_cast<uint8_t>(label);
    for (uint64_t row = 0; row < 28; ++row)
      for (uint64_t column = 0; column < 28; ++column)
        *next++ = pixel(label, row, column, 0.3f * static_cast<float>(rng.normal()));
  }
  std::vector<weft::data::NpzArray> arrays;
  arrays.push_back({"image", std::move(images)});
  arrays.push_back({"label", std::move(labels)});
  std::ofstream file(argv[1], std::ios::binary);
  const weft::Status written = weft::data::write_npz(arrays, [&](std::span<const std::byte> bytes) {
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return weft::Status{};
  });
  file.close();
  if (written && file) return 0;
  std::fprintf(stderr, "weft_doc_data: %s cannot be written\n", argv[1]);
  return 1;
}
