#include "cli/curves.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "base/overloaded.h"
#include "cli/say.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

constexpr const char* kHeading =
    "step,time,loss,learning_rate,gradient_norm,seconds,samples_per_second,skipped,test_loss,test_accuracy";

std::string cell(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }

// A file that is added to, until writing it fails.
class Appended {
 public:
  explicit Appended(fs::path path) : path_(std::move(path)) {}
  ~Appended() { close(); }
  Appended(const Appended&) = delete;
  Appended& operator=(const Appended&) = delete;

  // With these bytes to begin with, in place of what is there.
  void begin(const std::string& bytes) {
    close();
    out_ = std::fopen(path_.c_str(), "we");
    if (out_ == nullptr) return give_up();
    write(bytes);
  }
  void write(const std::string& bytes) {
    if (out_ == nullptr) return;
    if (std::fwrite(bytes.data(), 1, bytes.size(), out_) != bytes.size() || std::fflush(out_) != 0) give_up();
  }
  const fs::path& path() const { return path_; }

 private:
  void close() {
    if (out_ != nullptr) std::fclose(std::exchange(out_, nullptr));
  }
  void give_up() {
    const std::string why = std::strerror(errno);
    close();
    if (!std::exchange(said_, true))
      say(stderr, "warning: {} cannot be written ({}); the run goes on without it\n", path_.string(), why);
  }

  const fs::path path_;
  std::FILE* out_ = nullptr;
  bool said_ = false;
};

// The rows of a table as it stands that are of steps before `first_step`, and whole.
std::string rows_before(const fs::path& path, uint64_t first_step) {
  std::string kept;
  std::ifstream in(path, std::ios::binary);
  std::string line;
  if (!std::getline(in, line) || line != kHeading) return kept;
  while (std::getline(in, line) && !in.eof()) {  // a last line without its end may be half of one
    uint64_t step = 0;
    const auto read = std::from_chars(line.data(), line.data() + line.size(), step);
    if (read.ec == std::errc() && *read.ptr == ',' && step < first_step) kept += line + "\n";
  }
  return kept;
}

class Curves : public Listener {
 public:
  explicit Curves(fs::path file) : file_(std::move(file)) {}
  ~Curves() override { put_row(); }

  void hear(const RunEvent& event, int64_t unix_ms, proto::JobNumber) override {
    std::visit(
        Overloaded{[&](const train::Event& e) { std::visit([&](const auto& one) { on(one, unix_ms); }, e); },
                   [](const auto&) {}},
        event);
  }

 private:
  void on(const train::StartEvent& e, int64_t) {
    file_.begin(std::string(kHeading) + "\n" +
                (e.first_step > 1 ? rows_before(file_.path(), e.first_step) : ""));
  }
  void on(const train::StepEvent& e, int64_t unix_ms) {
    put_row();
    row_ = {e, unix_ms, {}};
  }
  void on(const train::EvaluationEvent& e, int64_t) {
    if (row_ && row_->step.step == e.after_step) row_->metrics = e.metrics;
  }
  void on(const train::ResultEvent&, int64_t) { put_row(); }
  void on(const train::CheckpointEvent&, int64_t) {}
  void on(const train::WarningEvent&, int64_t) {}
  void on(const train::AgreementEvent&, int64_t) {}

  void put_row() {
    if (!row_) return;
    const train::StepEvent& e = row_->step;
    const auto metric = [&](const char* name) {
      const auto at = row_->metrics.find(name);
      return at == row_->metrics.end() ? std::string() : cell(at->second);
    };
    file_.write(fmt::format("{},{},{},{},{},{},{},{},{},{}\n", e.step, utc_time(row_->unix_ms),
                            e.skipped ? "" : cell(e.loss), cell(e.learning_rate), cell(e.gradient_norm),
                            cell(e.seconds), cell(e.samples_per_second), e.skipped ? 1 : 0, metric("loss"),
                            metric("accuracy")));
    row_.reset();
  }

  struct Row {
    train::StepEvent step{};
    int64_t unix_ms = 0;
    std::map<std::string, double> metrics{};
  };
  Appended file_;
  std::optional<Row> row_;  // the last step: it may still be evaluated
};

// ---- TensorBoard's event files

// Fields of protobuf's wire format.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string key(uint32_t field, uint32_t type) { return varint(field << 3 | type); }
template <typename T>
std::string fixed(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));  // little-endian, as every machine that weft runs on
  return bytes;
}
std::string text(uint32_t field, const std::string& bytes) {
  return key(field, 2) + varint(bytes.size()) + bytes;
}

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

// {uint64 length, its CRC, bytes, their CRC}
std::string framed(const std::string& bytes) {
  const std::string length = fixed<uint64_t>(bytes.size());
  return length + fixed<uint32_t>(masked(crc32c(length))) + bytes + fixed<uint32_t>(masked(crc32c(bytes)));
}

using Scalars = std::vector<std::pair<const char*, double>>;

// tensorflow.Event {wall_time = 1, step = 2, file_version = 3 | summary = 5 {value = 1 {tag = 1,
// simple_value = 2}}}
std::string event_of(int64_t unix_ms, uint64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += text(1, text(1, tag) + key(2, 5) + fixed<float>(static_cast<float>(value)));
  return key(1, 1) + fixed<double>(static_cast<double>(unix_ms) / 1000) + key(2, 0) + varint(step) +
         text(5, summary);
}

class EventFile : public Listener {
 public:
  explicit EventFile(fs::path folder) : folder_(std::move(folder)) {}

  void hear(const RunEvent& event, int64_t unix_ms, proto::JobNumber) override {
    const auto* e = std::get_if<train::Event>(&event);
    if (e == nullptr) return;
    if (const auto* step = std::get_if<train::StepEvent>(e)) {
      Scalars scalars{{"train/learning_rate", step->learning_rate},
                      {"train/gradient_norm", step->gradient_norm},
                      {"train/samples_per_second", step->samples_per_second}};
      if (!step->skipped) scalars.insert(scalars.begin(), {"train/loss", step->loss});
      put(unix_ms, step->step, scalars);
    } else if (const auto* evaluation = std::get_if<train::EvaluationEvent>(e)) {
      Scalars scalars;
      for (const auto& [name, value] : evaluation->metrics)
        scalars.emplace_back(name == "accuracy" ? "test/accuracy" : "test/loss", value);
      put(unix_ms, evaluation->after_step, scalars);
    }
  }

 private:
  void put(int64_t unix_ms, uint64_t step, const Scalars& scalars) {
    if (!file_) begin(unix_ms);
    file_->write(framed(event_of(unix_ms, step, scalars)));
  }
  // A run has a file of its own: TensorBoard reads all of a folder as one.
  void begin(int64_t unix_ms) {
    std::error_code code;
    fs::create_directories(folder_, code);
    file_.emplace(folder_ / fmt::format("events.out.tfevents.{}.weft.{}", unix_ms / 1000, ::getpid()));
    file_->begin(
        framed(key(1, 1) + fixed<double>(static_cast<double>(unix_ms) / 1000) + text(3, "brain.Event:2")));
  }

  const fs::path folder_;
  std::optional<Appended> file_;
};

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~crc;
}

std::unique_ptr<Listener> make_curves(fs::path file) { return std::make_unique<Curves>(std::move(file)); }
std::unique_ptr<Listener> make_event_file(fs::path folder) {
  return std::make_unique<EventFile>(std::move(folder));
}

}  // namespace weft::cli
