// What is done where codecs turn out to harm a run: it is planned anew with gentler ones.
#pragma once

#include "broker/jobs/job_book.h"
#include "broker/step.h"

namespace weft::broker {

// REQUIRES: the job runs.
void guard_codecs(Step& step, JobBook& book, Job& job, const proto::LinkComparison& comparison);

}  // namespace weft::broker
