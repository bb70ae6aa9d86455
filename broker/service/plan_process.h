// A process that plans, seen from the broker: started, asked, ended, and, when it ended by itself, what
// people are told of that.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>

#include "broker/service/plan_worker.h"

namespace weft::broker {

struct PlanProcessOptions {
  std::filesystem::path program{};  // weft
  std::filesystem::path blobs{}, jobs{};
  std::optional<uint64_t> copy_rate{};  // bytes a second
  Bytes memory_max{int64_t{4} << 30};
};

class PlanProcess {
 public:
  // Errors: Unavailable, with why it could not be started. The process ends with the thread that started it.
  static Result<std::unique_ptr<PlanProcess>> start(const PlanProcessOptions& options);
  ~PlanProcess();  // SIGKILL, and waits until it is gone
  PlanProcess(const PlanProcess&) = delete;
  PlanProcess& operator=(const PlanProcess&) = delete;

  // Errors: what planning said; Timeout, ResourceExhausted (memory) and Internal when the process was ended
  // or ended by itself: then is_alive() is false.
  Result<PlanReply> ask(const StartPlanning& request, const PlanTaskAt& task, Duration time_max);
  bool is_alive() const { return process_ > 0; }
  pid_t id() const { return process_; }
  Bytes resident() const;  // what it takes of the machine's memory

  // From any thread: who asks it is told that it is gone, soon.
  void cancel();

 private:
  PlanProcess(const PlanProcessOptions& options, int socket, pid_t process);
  Error end(const Error& error, const PlanTaskAt& task, Duration time_max);

  const PlanProcessOptions options_;
  const int socket_;
  pid_t process_;  // 0: gone
  std::atomic<bool> cancelled_{false};
};

}  // namespace weft::broker
