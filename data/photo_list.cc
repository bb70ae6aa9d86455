#include "data/photo_list.h"

#include <algorithm>
#include <map>
#include <system_error>

#include "data/csv.h"
#include "data/dataset.h"

namespace weft::data {
namespace fs = std::filesystem;

namespace {

tl::unexpected<Error> refuse(const fs::path& path, ErrorCode code, const std::string& what) {
  return fail(code, path.string() + ": " + what);
}

std::string small_extension(const fs::path& path) {
  std::string text = path.extension().string();
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

bool is_photo(const std::string& extension) {
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png" || extension == ".webp";
}

// Pictures all the same, which to pass over would be to lose samples without a word.
bool is_other_picture(const std::string& extension) {
  static constexpr std::string_view kOthers[] = {".gif",  ".bmp", ".tif", ".tiff", ".heic", ".heif",
                                                 ".avif", ".jp2", ".ppm", ".pgm",  ".jfif", ".jxl"};
  return std::find(std::begin(kOthers), std::end(kOthers), extension) != std::end(kOthers);
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  const auto [in_folder, in_path] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return in_folder == folder.end();
}

// Walks a folder; what is hidden (a name with a dot in front) is not looked at.
class Walk {
 public:
  explicit Walk(fs::path root) : root_(std::move(root)) {}

  struct Entries {
    std::vector<std::string> folders, photos;  // names, sorted
  };

  Result<Entries> entries_of(const fs::path& folder) {
    Entries entries;
    std::error_code code;
    fs::directory_iterator at(folder, code);
    if (code) return cannot_read(folder, code);
    if (++folders_ > kFoldersMax)
      return refuse(root_, ErrorCode::ResourceExhausted,
                    "has more than " + std::to_string(kFoldersMax) + " folders");
    for (; at != fs::directory_iterator(); at.increment(code)) {
      if (code) return cannot_read(folder, code);
      WEFT_TRY_STATUS(add(*at, entries));
    }
    if (code) return cannot_read(folder, code);
    std::sort(entries.folders.begin(), entries.folders.end());
    std::sort(entries.photos.begin(), entries.photos.end());
    return entries;
  }

  // All photos below, as names relative to the root, in the order of their bytes.
  Result<std::vector<std::string>> photos_below(const std::string& folder, int depth = 1) {
    if (depth > kFolderDepthMax)
      return refuse(root_ / folder, ErrorCode::ResourceExhausted,
                    "lies deeper than " + std::to_string(kFolderDepthMax) + " folders");
    WEFT_TRY(const Entries entries, entries_of(root_ / folder));
    std::vector<std::string> names;
    names.reserve(entries.photos.size());
    const std::string before = folder.empty() ? "" : folder + "/";
    for (const std::string& name : entries.photos) names.push_back(before + name);
    for (const std::string& name : entries.folders) {
      WEFT_TRY(const auto more, photos_below(before + name, depth + 1));
      names.insert(names.end(), more.begin(), more.end());
    }
    if (names.size() > kPhotosMax)
      return refuse(root_, ErrorCode::ResourceExhausted,
                    "has more than " + std::to_string(kPhotosMax) + " photos");
    std::sort(names.begin(), names.end());
    return names;
  }

  uint64_t passed_over() const { return passed_over_; }

 private:
  static tl::unexpected<Error> cannot_read(const fs::path& folder, const std::error_code& code) {
    const bool is_absent = code == std::errc::no_such_file_or_directory;
    return refuse(folder, is_absent ? ErrorCode::NotFound : ErrorCode::PermissionDenied,
                  "cannot be read: " + code.message());
  }

  Status add(const fs::directory_entry& entry, Entries& entries) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.')) return {};
    std::error_code code;
    if (entry.is_symlink(code)) WEFT_TRY_STATUS(check_link(entry.path()));
    if (entry.is_directory(code)) {
      entries.folders.push_back(name);
      return {};
    }
    const std::string extension = small_extension(entry.path());
    if (is_other_picture(extension))
      return refuse(entry.path(), ErrorCode::Unsupported,
                    "is no JPEG, PNG or WebP; convert it: convert " + name + " " +
                        entry.path().stem().string() + ".png");
    if (!is_photo(extension) || !entry.is_regular_file(code)) {
      ++passed_over_;
      return {};
    }
    if (entries.photos.size() >= kPhotosMax)
      return refuse(root_, ErrorCode::ResourceExhausted,
                    "has more than " + std::to_string(kPhotosMax) + " photos");
    entries.photos.push_back(name);
    return {};
  }

  // A file may stand for another of the same folder; what lies outside is not read, for nobody would see it
  // from the folder that he named.
  Status check_link(const fs::path& path) {
    std::error_code code;
    const fs::path target = fs::canonical(path, code);
    if (code) return refuse(path, ErrorCode::NotFound, "is a link to nothing");
    if (!lies_in(target, fs::canonical(root_, code)))
      return refuse(
          path, ErrorCode::InvalidArgument,
          "is a link that leads out of " + root_.string() + "; put the file itself there (cp, or ln)");
    if (fs::is_directory(target, code))
      return refuse(path, ErrorCode::InvalidArgument, "is a link to a folder; put the folder itself there");
    return {};
  }

  fs::path root_;
  size_t folders_ = 0;
  uint64_t passed_over_ = 0;
};

void note_passed_over(const Walk& walk, PhotoList& list) {
  if (walk.passed_over() > 0)
    list.notes.push_back(list.root.string() + ": " + std::to_string(walk.passed_over()) +
                         " files that are no .jpg, .jpeg, .png or .webp are passed over");
}

Status check_classes(const fs::path& root, const std::vector<std::string>& classes) {
  if (classes.size() > kClassesMax)
    return refuse(root, ErrorCode::ResourceExhausted,
                  "has more than " + std::to_string(kClassesMax) + " classes");
  if (const auto pair = differ_in_case({classes.begin(), classes.end()}))
    return refuse(root, ErrorCode::InvalidArgument,
                  "the classes '" + pair->first + "' and '" + pair->second +
                      "' differ in case alone; give them one name, or two that differ");
  return {};
}

// A class's folder without a photo.
tl::unexpected<Error> empty_class(const fs::path& folder) {
  return refuse(folder, ErrorCode::InvalidArgument,
                "is a class without a photo (.jpg, .jpeg, .png, .webp); remove the folder, or fill it");
}

Result<std::vector<std::string>> class_folders(Walk& walk, const fs::path& root) {
  WEFT_TRY(const Walk::Entries top, walk.entries_of(root));
  if (top.folders.empty())
    return refuse(root, ErrorCode::InvalidArgument,
                  "has no folder; a photo lies in the folder of its class, as " + root.filename().string() +
                      "/cat/1.jpg, or a table names it: `path: labels.csv`");
  if (!top.photos.empty())
    return refuse(root / top.photos.front(), ErrorCode::InvalidArgument,
                  "lies beside the folders of the classes, and so has none; move it into one");
  WEFT_TRY_STATUS(check_classes(root, top.folders));
  return top.folders;
}

Result<PhotoList> list_folder(const ImagesSpec& spec) {
  PhotoList list;
  list.root = spec.path;
  Walk walk(spec.path);
  if (!spec.has_labels) {
    WEFT_TRY(list.names, walk.photos_below(""));
    note_passed_over(walk, list);
    return list;
  }
  WEFT_TRY(const auto folders, class_folders(walk, spec.path));
  list.classes = folders;
  if (spec.classes_of) {
    WEFT_TRY(const PhotoList known, list_photos(*spec.classes_of));
    list.classes = known.classes;
  }
  for (const std::string& folder : folders) {
    const auto at = std::find(list.classes.begin(), list.classes.end(), folder);
    if (at == list.classes.end())
      return refuse(
          spec.path / folder, ErrorCode::InvalidArgument,
          "is a class that " + spec.classes_of->path.string() + ", which is trained on, does not have");
    WEFT_TRY(const auto photos, walk.photos_below(folder));
    if (photos.empty()) return empty_class(spec.path / folder);
    if (list.names.size() + photos.size() > kPhotosMax)
      return refuse(spec.path, ErrorCode::ResourceExhausted,
                    "has more than " + std::to_string(kPhotosMax) + " photos");
    list.names.insert(list.names.end(), photos.begin(), photos.end());
    list.labels.insert(list.labels.end(), photos.size(), at - list.classes.begin());
  }
  note_passed_over(walk, list);
  return list;
}

// ---- a table

Status check_named(const CsvReader& reader, const std::string& name, const fs::path& root) {
  const fs::path path(name);
  const bool is_plain =
      !name.empty() && name.size() <= 4096 && !path.is_absolute() &&
      std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
  if (!is_plain)
    return reader.error(ErrorCode::InvalidArgument,
                        "'" + name.substr(0, 256) + "' is not a path within the table's folder");
  std::error_code code;
  const fs::path target = fs::canonical(root / path, code);
  if (code || !fs::is_regular_file(target, code))
    return reader.error(ErrorCode::NotFound, "there is no file " + (root / path).string());
  if (!lies_in(target, fs::canonical(root, code)))
    return reader.error(ErrorCode::InvalidArgument,
                        (root / path).string() + " is a link that leads out of the table's folder");
  return {};
}

Result<std::vector<std::string>> names_in_table(const ImagesSpec& spec, const fs::path& root) {
  WEFT_TRY(auto file, File::open(spec.path));
  CsvReader reader(std::move(file), ',');
  WEFT_TRY(const bool has_header, reader.next());
  size_t column = reader.size();
  for (size_t i = 0; has_header && i < reader.size(); ++i)
    if (reader.field(i) == "path") column = i;
  if (!has_header || column == reader.size())
    return refuse(spec.path, ErrorCode::InvalidArgument,
                  "its header has no column 'path'; write a first row `path,label`");
  std::vector<std::string> names;
  for (;;) {
    WEFT_TRY(const bool is_there, reader.next());
    if (!is_there) return names;
    if (column >= reader.size()) return reader.error(ErrorCode::InvalidArgument, "has no path");
    if (names.size() == kPhotosMax)
      return reader.error(ErrorCode::ResourceExhausted,
                          "is beyond " + std::to_string(kPhotosMax) + " photos");
    names.emplace_back(reader.field(column));
    WEFT_TRY_STATUS(check_named(reader, names.back(), root));
  }
}

CsvSpec label_table(const ImagesSpec& spec) {
  CsvSpec table;
  table.path = spec.path;
  table.columns = {{.name = "label", .fields = {"label"}, .has_classes = spec.has_classes}};
  return table;
}

Result<PhotoList> list_table(const ImagesSpec& spec) {
  PhotoList list;
  list.root = spec.path.has_parent_path() ? spec.path.parent_path() : fs::path(".");
  WEFT_TRY(list.names, names_in_table(spec, list.root));
  if (!spec.has_labels) return list;
  CsvSpec table = label_table(spec);
  if (spec.classes_of) table.classes_of = std::make_shared<const CsvSpec>(label_table(*spec.classes_of));
  WEFT_TRY(const auto labels, open_csv(table));
  if (labels->columns()[0].sample.dtype != dag::DType::I64)
    return refuse(
        spec.path, ErrorCode::InvalidArgument,
        "its column 'label' holds fractions; labels are whole numbers, or texts with `classes: auto`");
  std::vector<uint32_t> rows(labels->sample_count());
  for (uint32_t i = 0; i < rows.size(); ++i) rows[i] = i;
  list.labels.resize(rows.size());
  WEFT_TRY_STATUS(labels->read(0, rows, std::as_writable_bytes(std::span(list.labels))));
  list.classes.assign(labels->classes(0).begin(), labels->classes(0).end());
  return list;
}

}  // namespace

Result<PhotoList> list_photos(const ImagesSpec& spec) {
  std::error_code code;
  const bool is_folder = fs::is_directory(spec.path, code);
  WEFT_TRY(PhotoList list, is_folder ? list_folder(spec) : list_table(spec));
  if (list.names.empty())
    return refuse(spec.path, ErrorCode::InvalidArgument, "names no photo (.jpg, .jpeg, .png, .webp)");
  return list;
}

Result<std::vector<fs::path>> files_of_photos(const ImagesSpec& spec) {
  WEFT_TRY(const PhotoList list, list_photos(spec));
  std::vector<fs::path> files;
  std::error_code code;
  if (!fs::is_directory(spec.path, code)) files.push_back(spec.path);
  for (const std::string& name : list.names) files.push_back(list.root / name);
  return files;
}

}  // namespace weft::data
