// Which photos a data set has, and of which class each is: a folder with a folder for each class, or a table
// with the columns path and label. Their order is that of the bytes of their names, never that of the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/data_spec.h"

namespace weft::data {

inline constexpr size_t kPhotosMax = size_t{1} << 21;
inline constexpr size_t kFoldersMax = size_t{1} << 17;
inline constexpr int kFolderDepthMax = 16;

struct PhotoList {
  std::filesystem::path root;      // what the names are relative to
  std::vector<std::string> names;  // "cat/1.jpg"
  std::vector<int64_t> labels;     // as many, or none where they are not asked for
  std::vector<std::string> classes;
  std::vector<std::string> notes;
};

// Errors: NotFound, InvalidArgument (no photo, a class without one, two that differ in case alone, a link
// that leads out of the folder, a file of another kind of picture), ResourceExhausted.
Result<PhotoList> list_photos(const ImagesSpec& spec);

// The table, if it is one, and every photo.
Result<std::vector<std::filesystem::path>> files_of_photos(const ImagesSpec& spec);

}  // namespace weft::data
