// Internal to proto/codec: the pairs put/get that turn each message into its protobuf class and back, and
// what they share. A message is extended in three places that stand by its name: its struct, weft.proto, and
// its pair. A new one is in proto/message_list.h as well.
#pragma once

#include <weft.pb.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/printable.h"
#include "base/result.h"
#include "proto/codec/bounds.h"
#include "proto/message_list.h"
#include "proto/messages.h"
#include "proto/planning.h"

namespace weft::proto {

#define WEFT_DECLARE(Type, name)              \
  void put(const Type& from, wire::Type& to); \
  Status get(const wire::Type& from, Type& to);
WEFT_MESSAGES(WEFT_DECLARE)
#undef WEFT_DECLARE

// Parts of messages.
void put(const LinkComparison& from, wire::LinkComparison& to);
Status get(const wire::LinkComparison& from, LinkComparison& to);
void put(const dag::TensorSpec& from, wire::TensorSpec& to);
Status get(const wire::TensorSpec& from, dag::TensorSpec& to);
void put(const BlobSource& from, wire::BlobSource& to);
Status get(const wire::BlobSource& from, BlobSource& to);
// OutOfRange: indices of tensors that are not in a list of so many, or have two sources.
Status check_sources(const std::vector<BlobSource>& sources, size_t tensors);
void put(const TensorReference& from, wire::TensorReference& to);
Status get(const wire::TensorReference& from, TensorReference& to);
void put(const BlobRecipe& from, wire::BlobRecipe& to);
Status get(const wire::BlobRecipe& from, BlobRecipe& to);
void put(const plan::Rates& from, wire::Rates& to);
Status get(const wire::Rates& from, plan::Rates& to);
void put(const StageWork& from, wire::StageWork& to);
Status get(const wire::StageWork& from, StageWork& to);
void put(const StageSaving& from, wire::StageSaving& to);
Status get(const wire::StageSaving& from, StageSaving& to);
void put(const LinkUse& from, wire::LinkUse& to);
Status get(const wire::LinkUse& from, LinkUse& to);
void put(const DeviceReport& from, wire::DeviceReport& to);
Status get(const wire::DeviceReport& from, DeviceReport& to);
void put(const dag::Graph& from, wire::Graph& to);
Status get(const wire::Graph& from, dag::Graph& to);
void put(const EdgeEnd& from, wire::EdgeEnd& to);
Status get(const wire::EdgeEnd& from, EdgeEnd& to);
void put(const StageProgram& from, wire::StageProgram& to);
Status get(const wire::StageProgram& from, StageProgram& to);
void put(const LinkRoute& from, wire::LinkRoute& to);
Status get(const wire::LinkRoute& from, LinkRoute& to);
void put(const dag::TrainingSpec& from, wire::Training& to);
Status get(const wire::Training& from, dag::TrainingSpec& to);
void put(const replicas::Inherited& from, wire::Inherited& to);
Status get(const wire::Inherited& from, replicas::Inherited& to);
void put(const replicas::LocalSteps& from, wire::LocalSteps& to);
Status get(const wire::LocalSteps& from, replicas::LocalSteps& to);
void put(const replicas::StepRange& from, wire::StepRange& to);
Status get(const wire::StepRange& from, replicas::StepRange& to);
void put(const AgreedTensor& from, wire::AgreedTensor& to);
Status get(const wire::AgreedTensor& from, AgreedTensor& to);
void put(const LocalTerms& from, wire::LocalTerms& to);
Status get(const wire::LocalTerms& from, LocalTerms& to);
void put(const ExactTerms& from, wire::ExactTerms& to);
Status get(const wire::ExactTerms& from, ExactTerms& to);
// What it says of replicas, beside the rest.
Status check_local(const AssignStage& stage);
Status check_exact(const AssignStage& stage);
void put(const LocalPoint& from, wire::LocalPoint& to);
Status get(const wire::LocalPoint& from, LocalPoint& to);
void put(const ServeDraft& from, wire::ServeDraft& to);
Status get(const wire::ServeDraft& from, ServeDraft& to);
void put(const ServeProgram& from, wire::ServeProgram& to);
Status get(const wire::ServeProgram& from, ServeProgram& to);
void put(const ServedModel& from, wire::ServedModel& to);
Status get(const wire::ServedModel& from, ServedModel& to);
void put(const ServedToken& from, wire::ServedToken& to);
Status get(const wire::ServedToken& from, ServedToken& to);
void put(const RunStage& from, wire::RunStage& to);
Status get(const wire::RunStage& from, RunStage& to);
void put(const FilePiece& from, wire::FilePiece& to);
Status get(const wire::FilePiece& from, FilePiece& to);
void put(const ModelTensor& from, wire::ModelTensor& to);
Status get(const wire::ModelTensor& from, ModelTensor& to);
void put(const PackedFile& from, wire::PackedFile& to);
Status get(const wire::PackedFile& from, PackedFile& to);
void put(const StageStatus& from, wire::StageStatus& to);
Status get(const wire::StageStatus& from, StageStatus& to);
void put(const PeerStatus& from, wire::PeerStatus& to);
Status get(const wire::PeerStatus& from, PeerStatus& to);
void put(const LinkEnd& from, wire::LinkEnd& to);
Status get(const wire::LinkEnd& from, LinkEnd& to);
void put(const LinkFigure& from, wire::LinkFigure& to);
Status get(const wire::LinkFigure& from, LinkFigure& to);

// What never leaves the broker's machine (proto/planning.h).
void put(const PlanQuestion& from, wire::PlanQuestion& to);
Status get(const wire::PlanQuestion& from, PlanQuestion& to);
void put(const ColumnTransform& from, wire::ColumnTransform& to);
Status get(const wire::ColumnTransform& from, ColumnTransform& to);
void put(const DataSource& from, wire::DataSource& to);
Status get(const wire::DataSource& from, DataSource& to);
void put(const InputFeed& from, wire::InputFeed& to);
Status get(const wire::InputFeed& from, InputFeed& to);
void put(const InputBounds& from, wire::InputBounds& to);
Status get(const wire::InputBounds& from, InputBounds& to);
void put(const ProgramFeed& from, wire::ProgramFeed& to);
Status get(const wire::ProgramFeed& from, ProgramFeed& to);
void put(const JobFeed& from, wire::JobFeed& to);
Status get(const wire::JobFeed& from, JobFeed& to);
void put(const PlanAnswer& from, wire::PlanAnswer& to);
Status get(const wire::PlanAnswer& from, PlanAnswer& to);

// ---- writing

// Enumerators count from 1 on the wire, `first` being 1.
template <typename Wire, typename Enum>
Wire put_enum(Enum value, Enum first = Enum{}) {
  return static_cast<Wire>(static_cast<int>(value) - static_cast<int>(first) + 1);
}
inline std::string put_bytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}
inline std::string put_bytes(const Secret& secret) {
  return {reinterpret_cast<const char*>(secret.data()), secret.size()};
}
// For people: what is beyond the bound is cut, for the message matters more than its end.
inline std::string put_text(const std::string& text, size_t size_max = kTextMax) {
  return text.substr(0, size_max);
}
template <typename Wire>
void put_seat(const plan::Seat& from, Wire& to) {
  to.set_stage(from.stage);
  to.set_replica(from.replica);
}
template <typename T, typename List>
void put_list(const std::vector<T>& from, List& to) {
  to.Reserve(static_cast<int>(from.size()));
  for (const T& entry : from) put(entry, *to.Add());
}
template <typename T, typename List>
void put_plain(const std::vector<T>& from, List& to) {  // numbers, texts
  to.Reserve(static_cast<int>(from.size()));
  for (const T& entry : from) *to.Add() = entry;
}

// ---- reading

// Reads the fields of one message, checking each; after the first that is wrong the rest is skipped.
class Reader {
 public:
  explicit Reader(std::string_view message) : message_(message) {}

  bool good() const { return status_.has_value(); }
  Status status() { return std::move(status_); }
  void refuse(ErrorCode code, std::string_view field, const std::string& why);
  void require(bool holds, std::string_view field, const char* why) {
    if (good() && !holds) refuse(ErrorCode::OutOfRange, field, why);
  }

  // As it is: what programs read.
  void text(const std::string& from, std::string& to, size_t size_max, std::string_view field);
  // What people read, cleaned (base/printable.h): a name, one line of at most kNameMax bytes; a message, some
  // lines of at most kTextMax.
  void name(const std::string& from, std::string& to, std::string_view field);
  void message(const std::string& from, std::string& to, std::string_view field);
  void secret(const std::string& from, Secret& to, std::string_view field);
  void digest(const std::string& from, Digest& to, std::string_view field);
  void digest(const std::string& from, std::optional<Digest>& to, std::string_view field);  // empty: none
  void bytes(uint64_t from, Bytes& to, std::string_view field);
  void duration(uint64_t nanoseconds, Duration& to, std::string_view field);
  void stage(uint32_t from, uint32_t& to, std::string_view field);  // below kStagesMax
  void seat(uint32_t stage, uint32_t replica, plan::Seat& to, std::string_view field);
  void codec(const std::string& name, compress::Codec& to, std::string_view field);  // empty: dense
  void size(uint64_t from, uint64_t& to, std::string_view field);                    // of a blob
  void finite(double from, double& to, std::string_view field);
  void not_negative(double from, double& to, std::string_view field);  // and finite
  void positive(double from, double& to, std::string_view field);      // and finite

  template <typename Enum>
  void enumerator(int from, Enum& to, Enum last, std::string_view field, Enum first = Enum{}) {
    const int value = from - 1 + static_cast<int>(first);
    if (!in_range(from, value <= static_cast<int>(last), field)) return;
    to = static_cast<Enum>(value);
  }
  void error_code(int from, ErrorCode& to, std::string_view field) {
    enumerator(from, to, kErrorCodeLast, field);
  }
  template <typename Wire, typename T>
  void part(const Wire& from, T& to, std::string_view field) {
    if (good()) within(get(from, to), field);
  }
  template <typename List, typename T>
  void list(const List& from, std::vector<T>& to, size_t count_max, std::string_view field) {
    if (!count(from.size(), count_max, field)) return;
    to.resize(static_cast<size_t>(from.size()));
    for (int i = 0; i < from.size() && good(); ++i)
      within(get(from[i], to[static_cast<size_t>(i)]), field, i);
  }
  template <typename List>
  void texts(const List& from, std::vector<std::string>& to, size_t count_max, size_t size_max,
             std::string_view field) {
    if (!count(from.size(), count_max, field)) return;
    to.resize(static_cast<size_t>(from.size()));
    for (int i = 0; i < from.size() && good(); ++i)
      text(from[i], to[static_cast<size_t>(i)], size_max, field);
  }
  template <typename List>
  void names(const List& from, std::vector<std::string>& to, size_t count_max, std::string_view field) {
    texts(from, to, count_max, kNameMax, field);
    for (std::string& entry : to) entry = printable(entry, Lines::One);
  }
  template <typename List>
  void messages(const List& from, std::vector<std::string>& to, size_t count_max, std::string_view field) {
    texts(from, to, count_max, kTextMax, field);
    for (std::string& entry : to) entry = printable(entry, Lines::Many);
  }
  template <typename List>
  void digests(const List& from, std::vector<Digest>& to, size_t count_max, std::string_view field) {
    if (!count(from.size(), count_max, field)) return;
    to.resize(static_cast<size_t>(from.size()));
    for (int i = 0; i < from.size() && good(); ++i) digest(from[i], to[static_cast<size_t>(i)], field);
  }
  template <typename List, typename T>
  void numbers(const List& from, std::vector<T>& to, size_t count_max, std::string_view field) {
    if (count(from.size(), count_max, field)) to.assign(from.begin(), from.end());
  }

 private:
  bool in_range(int from, bool below_last, std::string_view field);
  bool count(int count, size_t count_max, std::string_view field);
  void within(Status status, std::string_view field, int index = -1);

  std::string_view message_;
  Status status_;
};

// Of messages that may have some: to a reader that does not know them they are one field.
void put_recipes(const std::vector<BlobRecipe>& from, wire::Recipes& to);
void get_recipes(const wire::Recipes& from, std::vector<BlobRecipe>& to, Reader& read);

}  // namespace weft::proto
