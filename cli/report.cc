#include "cli/report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace weft::cli {

std::string json_number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }
std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_metrics(const std::map<std::string, double>& metrics) {
  std::string text = "{";
  for (const auto& [name, value] : metrics)
    text += (text.size() > 1 ? "," : "") + json_string(name) + ":" + json_number(value);
  return text + "}";
}

namespace {

template <typename Range, typename Format>
std::string json_list(const Range& range, const Format& format) {
  std::string text = "[";
  for (const auto& item : range) text += (text.size() > 1 ? "," : "") + format(item);
  return text + "]";
}

// How tensors travel over a link now.
const char* json_way(proto::LinkWay way) {
  if (way == proto::LinkWay::Unsaid) return "null";
  return way == proto::LinkWay::Direct ? R"("direct")" : R"("relay")";
}

std::string json_stage(const proto::StageStatus& stage) {
  const auto replica = [](const plan::Seat& seat, const char* key) {
    return seat.replica == 0 ? "" : fmt::format(R"("{}":{},)", key, seat.replica);
  };
  return fmt::format(
      R"({{"stage":{},{}"peer":{},"name":{},"region":{},"busy":{},"step":{},"links":{}}})", stage.seat.stage,
      replica(stage.seat, "replica"), json_string(to_hex(stage.peer.digest)), json_string(stage.peer_name),
      json_string(stage.region), json_number(stage.busy), stage.step,
      json_list(stage.links, [&](const proto::LinkUse& link) {
        return fmt::format(
            R"({{"to_stage":{},{}"bytes_sent":{},"seconds_waiting":{},"bytes_dense":{},"bytes_encoded":{},"relative_error":{},"way":{}}})",
            link.seat.stage, replica(link.seat, "to_replica"), link.bytes_sent,
            json_number(link.seconds_waiting), link.bytes_dense, link.bytes_encoded,
            link.errors > 0 ? json_number(link.error_sum / link.errors) : "null", json_way(link.way));
      }));
}

std::string json_comparison(const proto::LinkComparison& c) {
  if (c.step == 0) return "null";
  return fmt::format(R"({{"step":{},"loss":{},"loss_dense":{},"gradient_error":{},"gradient_cosine":{}}})",
                     c.step, json_number(c.loss), json_number(c.loss_dense), json_number(c.gradient_error),
                     json_number(c.gradient_cosine));
}

std::string json_time(int64_t unix_ms) { return unix_ms > 0 ? json_string(utc_time(unix_ms)) : "null"; }

// The last one.
std::string json_evaluation(const proto::JobStatus& s) {
  if (s.evaluated_step == 0) return "null";
  return fmt::format(R"({{"after_step":{},"metrics":{}}})", s.evaluated_step, json_metrics(s.metrics));
}

// Of a job with adapters: what comes behind the rest.
std::string json_adapter(const train::ResultEvent& e) {
  std::string text = e.adapter.empty() ? "" : R"(,"adapter":)" + json_string(e.adapter.string());
  if (e.merge)
    text +=
        fmt::format(R"(,"merge":{{"from_adapters":{},"from_base":{},"largest_output":{}}})",
                    json_number(e.merge->merged), json_number(e.merge->base), json_number(e.merge->largest));
  return text;
}

std::string json_saving(const proto::JobStatus& s) {
  if (s.saving.step == 0) return "null";
  return fmt::format(R"({{"after_step":{},"bytes":{},"saved_bytes":{}}})", s.saving.step,
                     s.saving.bytes.value, s.saving.saved.value);
}

// Of replicas that make local steps.
std::string json_replicas(const proto::JobStatus& s) {
  if (s.replicas.steps.empty()) return "null";
  std::string steps;
  for (const uint64_t own : s.replicas.steps) steps += (steps.empty() ? "" : ",") + std::to_string(own);
  const bool agreed = s.replicas.agreed_step > 0;
  return fmt::format(R"({{"steps":[{}],"agreed_after_step":{},"agreed_seconds_ago":{}}})", steps,
                     agreed ? std::to_string(s.replicas.agreed_step) : "null",
                     agreed ? json_number(s.replicas.seconds_since_agreement) : "null");
}

}  // namespace

std::string json_status(const proto::JobStatus& s) {
  return fmt::format(
      R"({{"event":"status","name":{},"state":{},"reason":{},"step":{},"steps":{},"last_loss":{},"samples_per_second":{},"seconds_left":{},"checkpoint_step":{},"recovery_step":{},"recoveries":{},"equal_bits":{},"submitted":{},"ended":{},"evaluation":{},"saving":{},"replicas":{},"plan_version":{},"plan":{},"stages":{},"comparison":{},"submitter":{}}})",
      json_string(s.name), json_string(to_string(s.state)), json_string(s.reason), s.step, s.steps,
      json_number(s.loss), json_number(s.samples_per_second), json_number(s.seconds_left), s.checkpoint_step,
      s.recovery_step, s.recoveries, s.equal_bits, json_time(s.submitted_unix_ms), json_time(s.ended_unix_ms),
      json_evaluation(s), json_saving(s), json_replicas(s), s.plan_version, json_list(s.plan, json_string),
      json_list(s.stages, json_stage), json_comparison(s.comparison), json_string(s.submitter));
}

namespace {

struct JsonLine {
  std::string operator()(const train::Event& e) const { return std::visit(*this, e); }
  std::string operator()(const train::StartEvent& e) const {
    // What only the machines that train know is null.
    const bool known = !e.fingerprint.empty();
    const auto bytes = [&](Bytes size) {
      return known ? fmt::format("{}", size.value) : std::string("null");
    };
    return fmt::format(
        R"({{"event":"start","first_step":{},"steps":{},"samples":{},"batch_size":{},"parameters":{},"parameter_elements":{},"frozen":{},"persistent_bytes":{},"microbatch_bytes":{},"fingerprint":{},"warnings":{},"notes":{}}})",
        e.first_step, e.steps, e.sample_count, e.batch_size, e.parameter_tensors, e.parameter_elements,
        e.frozen_tensors, bytes(e.persistent), bytes(e.microbatch),
        known ? json_string(e.fingerprint) : "null", json_list(e.warnings, json_string),
        json_list(e.notes, json_string));
  }
  std::string operator()(const train::StepEvent& e) const {
    return fmt::format(
        R"({{"event":"step","step":{},"loss":{},"learning_rate":{},"seconds":{},"samples_per_second":{},"gradient_norm":{}{}}})",
        e.step, json_number(e.loss), json_number(e.learning_rate), json_number(e.seconds),
        json_number(e.samples_per_second), json_number(e.gradient_norm),
        e.skipped ? R"(,"skipped":true)" : "");
  }
  std::string operator()(const train::AgreementEvent& e) const {
    return fmt::format(
        R"({{"event":"agreement","after_step":{},"replica_steps":[{}],"sent_bytes":{},"returned_bytes":{},"dense_bytes":{}}})",
        e.after_step, fmt::join(e.steps, ","), e.sent_bytes, e.returned_bytes, e.dense_bytes);
  }
  std::string operator()(const train::EvaluationEvent& e) const {
    return fmt::format(R"({{"event":"evaluation","after_step":{},"samples":{},"metrics":{},"codecs":{}}})",
                       e.after_step, e.samples, json_metrics(e.metrics),
                       e.codecs.empty() ? "null" : json_string(e.codecs));
  }
  std::string operator()(const train::CheckpointEvent& e) const {
    return fmt::format(R"({{"event":"checkpoint","after_step":{},"path":{}}})", e.after_step,
                       e.path.empty() ? "null" : json_string(e.path.string()));
  }
  std::string operator()(const train::WarningEvent& e) const {
    return fmt::format(R"({{"event":"warning","after_step":{},"text":{}}})", e.after_step,
                       json_string(e.text));
  }
  std::string operator()(const train::ResultEvent& e) const {
    return fmt::format(
        R"({{"event":"result","status":"{}","steps":{},"seconds":{},"output":{},"inference":{},"checkpoint":{},"metrics":{}{}}})",
        e.failed || !e.diverged.empty() ? "failed"
        : e.stopped                     ? "stopped"
                                        : "completed",
        e.steps, json_number(e.seconds), e.output.empty() ? "null" : json_string(e.output.string()),
        e.inference.empty() ? "null" : json_string(e.inference.string()),
        e.checkpoint.empty() ? "null" : json_string(e.checkpoint.string()), json_metrics(e.metrics),
        json_adapter(e));
  }
  std::string operator()(const SubmittedEvent&) const { return R"({"event":"submitted"})"; }
  std::string operator()(const StateEvent& e) const {
    return fmt::format(R"({{"event":"state","state":{},"reason":{},"step":{}}})", json_string(e.state),
                       json_string(e.reason), e.step);
  }
  std::string operator()(const PlanEvent& e) const {
    std::string stages;
    for (size_t s = 0; s < e.peers.size(); ++s) {
      const bool has_replicas = s < e.seats.size();
      const std::string replica = has_replicas ? fmt::format(R"("replica":{},)", e.seats[s].replica) : "";
      stages += fmt::format(R"({}{{"stage":{},{}"device":{}}})", s > 0 ? "," : "",
                            has_replicas ? e.seats[s].stage : s, replica, json_string(e.peers[s]));
    }
    return fmt::format(
        R"({{"event":"plan","stages":[{}],"predicted_step_seconds":{},"predicted_samples_per_second":{},"lines":{}}})",
        stages, json_number(e.step_seconds), json_number(e.samples_per_second),
        json_list(e.lines, json_string));
  }
  std::string operator()(const NoticeEvent& e) const {
    return fmt::format(R"({{"event":"notice","step":{},"text":{}}})", e.step, json_string(e.text));
  }
  std::string operator()(const StatusEvent& e) const { return json_status(e.status); }
  std::string operator()(const EndEvent& e) const {
    return fmt::format(
        R"({{"event":"result","status":{},"reason":{},"steps":{},"seconds":{},"output":{},"inference":{},"checkpoint":null,"metrics":{}}})",
        json_string(e.state == "finished" ? "completed" : e.state), json_string(e.reason), e.step,
        json_number(e.seconds), e.output.empty() ? "null" : json_string(e.output.string()),
        e.inference.empty() ? "null" : json_string(e.inference.string()), json_metrics(e.metrics));
  }
};

class JsonReport : public Report {
 public:
  explicit JsonReport(std::FILE* out) : out_(out) {}
  void show_at(const RunEvent& event, int64_t unix_ms) override {
    const std::string line = stamped(std::visit(JsonLine{}, event), unix_ms, job_);
    std::fprintf(out_, "%s\n", line.c_str());
    std::fflush(out_);
  }
  bool is_unread() const override { return std::ferror(out_) != 0; }

 private:
  std::FILE* out_;
};

}  // namespace

std::unique_ptr<Report> make_json_report(std::FILE* out) { return std::make_unique<JsonReport>(out); }

}  // namespace weft::cli
