#include "cli/listener.h"

#include <utility>

namespace weft::cli {
namespace {

class HeardReport : public Report {
 public:
  HeardReport(std::unique_ptr<Report> report, std::vector<std::unique_ptr<Listener>> listeners)
      : report_(std::move(report)), listeners_(std::move(listeners)) {}

  void show_at(const RunEvent& event, int64_t unix_ms) override {
    for (const auto& listener : listeners_) listener->hear(event, unix_ms, job_);
    report_->about(job_);
    report_->show_at(event, unix_ms);
  }
  void make_way() override { report_->make_way(); }
  bool is_unread() const override { return report_->is_unread(); }

 private:
  std::unique_ptr<Report> report_;
  std::vector<std::unique_ptr<Listener>> listeners_;
};

}  // namespace

std::unique_ptr<Report> with_listeners(std::unique_ptr<Report> report,
                                       std::vector<std::unique_ptr<Listener>> listeners) {
  if (listeners.empty()) return report;
  return std::make_unique<HeardReport>(std::move(report), std::move(listeners));
}

}  // namespace weft::cli
