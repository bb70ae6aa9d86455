#include "train/made_data.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "base/overloaded.h"
#include "base/shortest.h"
#include "data/dataset.h"
#include "data/npz_writer.h"

namespace weft::train {
namespace fs = std::filesystem;

using configs::Node;

namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;

std::string folder_for_made_files() {
  const char* said = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe): nobody sets it here
  if (said != nullptr && *said != '\0') return said;
  return ::access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/tmp";
}

tl::unexpected<Error> cannot_write(const std::string& folder, int number) {
  const bool is_full = number == ENOSPC || number == EDQUOT || number == EFBIG;
  return fail(is_full ? ErrorCode::ResourceExhausted : ErrorCode::Unavailable,
              folder + ": what the data are made into for the broker cannot be written: " +
                  std::strerror(number) + "; set TMPDIR to a folder with room for it");
}

Node scalar(std::string text) {
  Node node;
  node.kind = Node::Kind::Scalar;
  node.text = std::move(text);
  return node;
}
Node number_node(double number) { return scalar(shortest(number)); }
Node list_node(const std::vector<double>& numbers) {
  Node node;
  node.kind = Node::Kind::Sequence;
  for (const double number : numbers) node.items.push_back(number_node(number));
  return node;
}
void put(Node& map, std::string key, Node value) {
  map.kind = Node::Kind::Map;
  map.entries.push_back({std::move(key), {}, std::move(value)});
}

Node transform_node(const data::Transform& transform) {
  Node node;
  put(node, "scale", number_node(transform.scale));
  if (!transform.mean.empty()) put(node, "mean", list_node(transform.mean));
  if (!transform.deviation.empty()) put(node, "deviation", list_node(transform.deviation));
  Node augment;
  augment.kind = Node::Kind::Sequence;
  if (transform.flip) augment.items.push_back(scalar("flip"));
  if (transform.crop > 0) augment.items.push_back(scalar("crop"));
  if (!augment.items.empty()) put(node, "augment", std::move(augment));
  if (transform.crop > 0) put(node, "size", scalar(std::to_string(transform.crop)));
  return node;
}

}  // namespace

Result<std::shared_ptr<MadeFile>> MadeFile::make() {
  const std::string folder = folder_for_made_files();
  std::string name = folder + "/weft-data-" + std::string(6, 'X');
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0) return cannot_write(folder, errno);
  ::unlink(name.c_str());
  return std::shared_ptr<MadeFile>(new MadeFile(descriptor, folder));
}

MadeFile::~MadeFile() { ::close(descriptor_); }

fs::path MadeFile::path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

Status MadeFile::write_at(uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return cannot_write(folder_, errno);
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Result<std::shared_ptr<const MadeFile>> make_npz(const data::DataSpec& spec) {
  WEFT_TRY(const auto dataset, data::open_stored(spec));
  WEFT_TRY(std::shared_ptr<MadeFile> file, MadeFile::make());
  std::vector<data::NpzRows::Array> arrays;
  for (const data::Column& column : dataset->columns()) {
    dag::TensorSpec all = column.sample;
    all.shape.insert(all.shape.begin(), int64_t{dataset->sample_count()});
    arrays.push_back({column.name, all});
  }
  WEFT_TRY(auto rows,
           data::NpzRows::create(std::move(arrays), [&](uint64_t offset, std::span<const std::byte> bytes) {
             return file->write_at(offset, bytes);
           }));
  for (size_t column = 0; column < dataset->columns().size(); ++column) {
    const auto size = static_cast<size_t>(dataset->columns()[column].sample.bytes().value);
    const uint32_t at_once = static_cast<uint32_t>(std::max<size_t>(1, kPieceBytes / size));
    std::vector<std::byte> bytes;
    std::vector<uint32_t> samples;
    for (uint64_t first = 0; first < dataset->sample_count(); first += at_once) {
      samples.resize(static_cast<size_t>(std::min<uint64_t>(at_once, dataset->sample_count() - first)));
      std::iota(samples.begin(), samples.end(), static_cast<uint32_t>(first));
      bytes.resize(samples.size() * size);
      WEFT_TRY_STATUS(dataset->read(column, samples, bytes));
      WEFT_TRY_STATUS(rows.append(column, bytes));
    }
  }
  WEFT_TRY_STATUS(rows.finish());
  return file;
}

Node npz_node(const data::DataSpec& spec, const std::string& path) {
  const data::Transforms transforms = data::transforms_of(spec);
  Node node;
  put(node, "type", scalar("npz"));
  put(node, "path", scalar(path));
  node.entries.back().value.quoted = true;
  Node columns;
  for (const auto& [column, transform] : transforms)
    if (!transform.is_nothing()) put(columns, column, transform_node(transform));
  if (!columns.entries.empty()) put(node, "columns", std::move(columns));
  return node;
}

}  // namespace weft::train
