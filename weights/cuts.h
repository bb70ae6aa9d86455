// Tensors that an exporter cut out of published ones: rows or columns of a matrix, numbers of a list, or such
// with their axes exchanged. Whoever has the published one makes them by a recipe.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <stop_token>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "dag/recipe.h"
#include "dag/tensor.h"

namespace weft::weights {

inline constexpr size_t kAnchorNumbers = 16;  // by which a part of a tensor is found

// A list or matrix that may have been cut out of another.
struct SoughtTensor {
  Digest sha256{};
  dag::TensorSpec spec{};
  // The first numbers of its first row, and of its first column; of a list, which is one row, there are no
  // such of a column. None where there are fewer.
  std::vector<std::byte> row{}, column{};
};

// How those come about that are parts of tensors in the folder's files, by what they are. Whole tensors need
// no recipe, and are not looked for. What is said is right: each was made, and its hash compared. Files that
// cannot be read are passed over. Errors: as of find_files(); Cancelled.
Result<std::map<Digest, dag::Recipe>> find_cuts(const std::filesystem::path& folder,
                                                std::span<const SoughtTensor> sought,
                                                const std::stop_token& stop = {});

}  // namespace weft::weights
