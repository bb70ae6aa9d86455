#include "ui/asker.h"

#include <cstdio>
#include <exception>

namespace weft::ui {

Asker::Asker(std::function<void()> on_idle)
    : on_idle_(std::move(on_idle)), thread_([this] { loop_.run(); }) {}

Asker::~Asker() {
  loop_.stop();
  thread_.join();
}

bool Asker::ask(std::function<void()> work) {
  if (waiting_.fetch_add(1) >= kWaitingMax) {
    --waiting_;
    return false;
  }
  loop_.post([this, work = std::move(work)] { carry_out(work); });
  return true;
}

void Asker::carry_out(const std::function<void()>& work) {
  --waiting_;
  idle_.reset();
  // One answer's absurd wish for memory is no reason for the process to end.
  try {
    work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error page_failed what=\"%s\"\n", error.what());
  }
  idle_ = loop_.after(kIdle, on_idle_);
}

}  // namespace weft::ui
