// The numeric references of tests/numerics: a case's folder unpacked into a scratch folder, and its arrays.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "dag/tensor.h"

namespace weft::test {

// Copies a case's job and data into `folder` and unpacks `packed_model` beside them as model.onnx. Returns
// the job file.
std::filesystem::path unpack_case(const std::string& name, const std::filesystem::path& folder,
                                  const std::string& packed_model = "model.onnx.gz");

// Every array of an npz file, as doubles.
std::map<std::string, std::vector<double>> read_arrays(const std::filesystem::path& npz);

// A tensor in at most 32 numbers, as tests/numerics/sketch.py makes it: the sketch of a difference is the
// difference of the sketches, and about as long as the difference.
std::vector<double> sketch(const std::vector<double>& values);

std::filesystem::path case_folder(const std::string& name);
std::string read_file(const std::filesystem::path& path);

}  // namespace weft::test
