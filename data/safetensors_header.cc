// What safetensors' headers and indices say. Both are read as the parser meets them, without a tree of
// values: memory goes into tensors alone.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "data/safetensors.h"
#include "data/safetensors_types.h"

namespace weft::data {
namespace {

using Json = nlohmann::json;

constexpr size_t kNameMax = 1024;                   // bytes of a tensor's name
constexpr size_t kHeaderTextMax = size_t{1} << 20;  // of a text of the metadata: some trainers write a lot
constexpr size_t kIndexTextMax = 4096;
constexpr size_t kRankMax = 32;
constexpr size_t kDepthMax = 8;  // of what is passed over
constexpr std::string_view kMetadata = "__metadata__";

tl::unexpected<Error> damaged(const std::string& what) {
  return fail(ErrorCode::Corrupted, what + "; fetch or write it again");
}

// Whether no text between quotes is longer than that: the parser would hold it several times over.
bool has_short_texts(std::string_view json, size_t longest) {
  bool is_inside = false;
  size_t begin = 0;
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '"') {
      if (is_inside && i - begin > longest) return false;
      is_inside = !is_inside;
      begin = i;
    } else if (is_inside && json[i] == '\\') {
      ++i;
    }
  }
  return !is_inside || json.size() - begin <= longest;
}

// What both have in common: a problem ends the reading, and every value that is not expected is one.
class Reading : public nlohmann::json_sax<Json> {
 public:
  // The problem; nothing: it was read to its end.
  std::optional<Error> problem() const { return problem_; }

  bool null() override { return unexpected(); }
  bool boolean(bool /*value*/) override { return unexpected(); }
  bool number_integer(number_integer_t /*value*/) override { return unexpected(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return unexpected(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return unexpected(); }
  bool string(string_t& /*text*/) override { return unexpected(); }
  bool binary(binary_t& /*bytes*/) override { return unexpected(); }
  bool start_array(size_t /*size*/) override { return unexpected(); }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return stop(ErrorCode::Corrupted,
                "its header is no JSON at byte " + std::to_string(position) + "; fetch or write it again");
  }

 protected:
  bool stop(ErrorCode code, std::string what) {
    problem_ = Error{code, std::move(what)};
    return false;
  }
  bool stop(std::string what) {
    return stop(ErrorCode::Corrupted, std::move(what) + "; fetch or write it again");
  }
  virtual bool unexpected() = 0;

 private:
  std::optional<Error> problem_;
};

// {"__metadata__": {"format": "pt"}, NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
class HeaderReading : public Reading {
 public:
  explicit HeaderReading(uint64_t size) : size_(size) {}

  std::vector<PlacedTensor> take() { return std::move(tensors_); }

  bool start_object(size_t /*size*/) override {
    if (at_ == At::Begin) return enter(At::Names);
    if (at_ == At::Tensor && !is_inside_) return is_inside_ = true;
    if (at_ == At::Metadata && !is_inside_) return is_inside_ = true;
    return unexpected();
  }
  bool end_object() override {
    if (at_ == At::Names) return enter(At::End);
    const bool fine = at_ == At::Metadata || finish_tensor();
    is_inside_ = false;
    return fine && enter(At::Names);
  }
  bool key(string_t& text) override {
    if (at_ == At::Metadata) return true;
    if (at_ == At::Names) return begin(text);
    for (const Field& field : kFields)
      if (text == field.name) {
        field_ = &field;
        if (has_[field.number]) return stop(name_here() + " has `" + text + "` twice");
        return has_[field.number] = true;
      }
    return stop(name_here() + " has a key " + in_quotes(text) + ", which the format does not know");
  }
  bool string(string_t& text) override {
    if (at_ == At::Metadata && is_inside_) return true;
    if (!is_at(0)) return unexpected();
    const auto dtype = dtype_of_safetensors(text);
    field_ = nullptr;
    if (!dtype)
      return stop(ErrorCode::Unsupported, name_here() + " has elements of type " + in_quotes(text) +
                                              ", which weft does not read; write it as F32, F16 or BF16");
    tensor_.spec.dtype = *dtype;
    return true;
  }
  bool start_array(size_t /*size*/) override {
    if ((!is_at(1) && !is_at(2)) || is_in_list_) return unexpected();
    return is_in_list_ = true;
  }
  bool end_array() override {
    if (field_ != nullptr && field_->number == 2 && offsets_ != 2) return unexpected();
    field_ = nullptr;
    is_in_list_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!is_in_list_) return unexpected();
    if (is_at(2)) {
      if (offsets_ == 2) return unexpected();
      (offsets_++ == 0 ? tensor_.offset : end_) = value;
      return true;
    }
    if (tensor_.spec.shape.size() == kRankMax) return stop(name_here() + " has more than 32 axes");
    if (value > static_cast<uint64_t>(dag::kElementCountMax))
      return stop(name_here() + " has an axis of " + std::to_string(value) + ", which nothing can be");
    tensor_.spec.shape.push_back(static_cast<int64_t>(value));
    return true;
  }

 protected:
  bool unexpected() override {
    if (at_ == At::Metadata) return stop("its `__metadata__` is no map of texts");
    if (at_ != At::Tensor) return stop("its header is no map of tensors");
    return stop(name_here() +
                " is not {\"dtype\": text, \"shape\": [sizes], \"data_offsets\": [begin, end]}");
  }

 private:
  enum class At : uint8_t { Begin, Names, Tensor, Metadata, End };
  struct Field {
    std::string_view name;
    size_t number;
  };
  static constexpr std::array<Field, 3> kFields{{{"dtype", 0}, {"shape", 1}, {"data_offsets", 2}}};

  bool enter(At at) {
    at_ = at;
    return true;
  }
  bool is_at(size_t field) const { return at_ == At::Tensor && field_ && field_->number == field; }
  std::string name_here() const { return "tensor " + in_quotes(tensor_.name); }

  bool begin(string_t& name) {
    if (name == kMetadata) {
      if (std::exchange(has_metadata_, true)) return stop("its header has `__metadata__` twice");
      return enter(At::Metadata);
    }
    if (name.empty() || name.size() > kNameMax)
      return stop("the name of a tensor has " + std::to_string(name.size()) + " bytes, not 1 to " +
                  std::to_string(kNameMax));
    if (tensors_.size() == kNamedTensorsMax)
      return stop(ErrorCode::ResourceExhausted,
                  "it has more than " + std::to_string(kNamedTensorsMax) + " tensors; write several files");
    tensor_ = {};
    tensor_.name = name;
    has_ = {};
    field_ = nullptr;
    offsets_ = 0;
    return enter(At::Tensor);
  }

  bool finish_tensor() {
    for (const Field& field : kFields)
      if (!has_[field.number]) return stop(name_here() + " has no `" + std::string(field.name) + "`");
    const auto count = dag::checked_element_count(tensor_.spec.shape);
    if (!count) return stop(name_here() + " is too large: " + count.error().message);
    const auto bytes = static_cast<uint64_t>(tensor_.spec.bytes().value);
    if (end_ < tensor_.offset || end_ > size_)
      return stop(name_here() + " lies at bytes " + std::to_string(tensor_.offset) + " to " +
                  std::to_string(end_) + " of " + std::to_string(size_));
    if (end_ - tensor_.offset != bytes)
      return stop(name_here() + " is " + to_string(tensor_.spec) + ", which takes " + std::to_string(bytes) +
                  " bytes, and has " + std::to_string(end_ - tensor_.offset));
    tensor_.name.shrink_to_fit();
    tensors_.push_back(std::move(tensor_));
    return true;
  }

  uint64_t size_;
  std::vector<PlacedTensor> tensors_;
  At at_ = At::Begin;
  bool is_inside_ = false, is_in_list_ = false, has_metadata_ = false;
  PlacedTensor tensor_;  // that is read
  const Field* field_ = nullptr;
  std::array<bool, 3> has_{};
  size_t offsets_ = 0;
  uint64_t end_ = 0;
};

// One after the other from the first byte to the last, and no name twice.
Status check_places(std::vector<PlacedTensor>& tensors, uint64_t size) {
  const auto by_place = [](const PlacedTensor& a, const PlacedTensor& b) {
    return std::pair(a.offset, a.spec.bytes().value) < std::pair(b.offset, b.spec.bytes().value);
  };
  std::stable_sort(tensors.begin(), tensors.end(), by_place);
  uint64_t end = 0;
  for (const PlacedTensor& tensor : tensors) {
    if (tensor.offset < end)
      return damaged("tensor " + in_quotes(tensor.name) + " overlaps the one before it");
    if (tensor.offset > end)
      return damaged("no tensor has the bytes " + std::to_string(end) + " to " +
                     std::to_string(tensor.offset) + " in front of " + in_quotes(tensor.name));
    end += static_cast<uint64_t>(tensor.spec.bytes().value);
  }
  if (end != size)
    return damaged("no tensor has the last " + std::to_string(size - end) + " bytes: it was cut off or " +
                   "something was added");
  std::unordered_set<std::string_view> names(tensors.size());
  for (const PlacedTensor& tensor : tensors)
    if (!names.insert(tensor.name).second) return damaged("it has two tensors " + in_quotes(tensor.name));
  return {};
}

// {"metadata": whatever, "weight_map": {NAME: FILE, ...}}
class IndexReading : public Reading {
 public:
  std::map<std::string, std::string> take() { return std::move(files_); }
  bool has_map() const { return has_map_; }

  bool null() override { return passed_over(); }
  bool boolean(bool /*value*/) override { return passed_over(); }
  bool number_integer(number_integer_t /*value*/) override { return passed_over(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return passed_over(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return passed_over(); }
  bool start_array(size_t /*size*/) override { return !is_map_ && depth_ > 0 ? deeper() : unexpected(); }
  bool end_array() override { return --depth_ > 0; }
  bool start_object(size_t /*size*/) override {
    if (is_map_ && (depth_ > 1 || std::exchange(has_map_, true))) return unexpected();
    return deeper();
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool key(string_t& text) override {
    if (depth_ == 1) is_map_ = text == "weight_map";
    if (depth_ == 2 && is_map_) name_ = text;
    return true;
  }
  bool string(string_t& text) override {
    if (!is_map_ || depth_ != 2) return passed_over();
    if (name_.empty() || name_.size() > kNameMax) return unexpected();
    if (!is_plain(text))
      return stop(ErrorCode::PermissionDenied,
                  "it says that " + in_quotes(name_) + " lies in " + in_quotes(text) +
                      ": only files beside the index are read, whose names end in .safetensors");
    if (files_.size() == kNamedTensorsMax)
      return stop(ErrorCode::ResourceExhausted,
                  "it names more than " + std::to_string(kNamedTensorsMax) + " tensors");
    if (!files_.emplace(name_, text).second) return stop("it names tensor " + in_quotes(name_) + " twice");
    return true;
  }

 protected:
  bool unexpected() override { return stop("its `weight_map` is no map from tensors to files"); }

 private:
  static bool is_plain(std::string_view name) {
    return name.size() <= 255 && !name.starts_with('.') && name.ends_with(".safetensors") &&
           std::none_of(name.begin(), name.end(), [](char c) {
             return c == '/' || c == '\\' || c == ':' || static_cast<unsigned char>(c) < 0x20;
           });
  }
  bool passed_over() { return !is_map_ && depth_ > 0 ? true : unexpected(); }
  bool deeper() { return ++depth_ <= kDepthMax || stop("it is nested too deeply"); }

  std::map<std::string, std::string> files_;
  bool is_map_ = false, has_map_ = false;
  size_t depth_ = 0;
  std::string name_;
};

Status read(std::string_view json, size_t longest, Reading& reading) {
  if (!has_short_texts(json, longest))
    return fail(ErrorCode::ResourceExhausted,
                "its header has a text of more than " + std::to_string(longest) + " bytes");
  const bool whole = Json::sax_parse(json.begin(), json.end(), &reading);
  if (reading.problem()) return fail(*reading.problem());
  return whole ? Status{} : damaged("its header is no JSON");
}

}  // namespace

Result<std::vector<PlacedTensor>> parse_tensor_header(std::string_view json, uint64_t size) {
  if (!json.starts_with('{')) return damaged("its header does not begin with a brace");
  HeaderReading reading(size);
  WEFT_TRY_STATUS(read(json, kHeaderTextMax, reading));
  std::vector<PlacedTensor> tensors = reading.take();
  WEFT_TRY_STATUS(check_places(tensors, size));
  return tensors;
}

Result<std::map<std::string, std::string>> parse_tensor_index(std::string_view json) {
  IndexReading reading;
  WEFT_TRY_STATUS(read(json, kIndexTextMax, reading));
  if (!reading.has_map()) return damaged("it has no `weight_map`, which says where each tensor lies");
  return reading.take();
}

}  // namespace weft::data
