// A broker and a service of models that say what the test wants.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "ui/broker_view.h"

namespace weft::ui::test {

class FakeBroker final : public BrokerView {
 public:
  std::string address() const override { return "127.0.0.1:7777"; }
  Result<BrokerName> connect() override {
    if (away) return fail(*away);
    return BrokerName{"127.0.0.1:7777", "0.1.0", false};
  }
  void disconnect() override { ++disconnects; }
  Result<proto::JobList> jobs(uint32_t) override {
    ++asked;
    return proto::JobList{.jobs = listed, .more = false};
  }
  Result<proto::JobStatus> job(proto::JobNumber number) override {
    for (const proto::JobStatus& status : hidden)
      if (status.job == number) return status;
    return fail(ErrorCode::NotFound, "there is no job " + std::to_string(number));
  }
  Status events(proto::JobNumber number, uint64_t from,
                const std::function<void(const proto::JobEvent&)>& take) override {
    for (const proto::JobEvent& event : happened[number])
      if (event.sequence >= from) {
        take(event);
        ++events_read;
      }
    return {};
  }
  Result<proto::PeerList> peers() override { return peer_list; }
  Result<proto::LinkList> links() override { return link_list; }
  Status stop(proto::JobNumber number) override {
    stopped.push_back(number);
    return answer;
  }
  Status resume(proto::JobNumber number) override {
    resumed.push_back(number);
    return answer;
  }
  void interrupt() override { is_interrupted = true; }

  void happens(proto::JobNumber job, proto::JobEvent event) {
    event.job = job;
    event.sequence = happened[job].size() + 1;
    happened[job].push_back(std::move(event));
  }
  void does_step(proto::JobNumber job, uint64_t step, double loss) {
    happens(job, {.kind = proto::JobEventKind::Step,
                  .state = proto::JobState::Running,
                  .step = step,
                  .loss = loss,
                  .samples_per_second = 10});
  }

  std::optional<Error> away{};
  std::vector<proto::JobStatus> listed{}, hidden{};  // the newest first
  std::map<proto::JobNumber, std::vector<proto::JobEvent>> happened{};
  proto::PeerList peer_list{};
  proto::LinkList link_list{};
  Status answer{};  // to stop and resume
  std::vector<proto::JobNumber> stopped{}, resumed{};
  int asked = 0, events_read = 0, disconnects = 0;
  std::atomic<bool> is_interrupted = false;
};

class FakeModels final : public ModelView {
 public:
  Result<std::vector<std::string>> models() override { return std::vector<std::string>{"gpt"}; }
  Status generate(const web::GenerateRequest& request,
                  const std::function<bool(const std::string& text)>& on_text) override {
    last = request;
    for (const char* piece : {"Once ", "<b>upon</b> ", "\xc3\xa4 time"})
      if (!on_text(piece)) return fail(ErrorCode::Cancelled, "gone");
    return how;
  }
  void interrupt() override {}

  web::GenerateRequest last{};
  Status how{};
};

inline proto::JobStatus job_status(proto::JobNumber number, proto::JobState state) {
  proto::JobStatus status;
  status.job = number;
  status.name = "mnist.yaml";
  status.state = state;
  status.steps = 100;
  return status;
}
inline proto::PeerStatus peer_status(const std::string& name, const std::string& state) {
  proto::PeerStatus peer;
  for (size_t i = 0; i < std::min<size_t>(name.size(), 32); ++i)
    peer.peer.digest.bytes[i] = static_cast<uint8_t>(name[i]);
  peer.name = name;
  peer.state = state;
  return peer;
}

}  // namespace weft::ui::test
