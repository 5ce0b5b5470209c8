#include "engine/config/foreign_keys.h"

#include "base/nearest.h"

#include <fmt/format.h>

#include <array>

namespace stagecraft {
namespace {

/// Keys as remembered(), between blanks, and what is said of them.
struct ForeignKeys {
  std::string_view keys;
  std::string_view said;
};

/// Where a run config says the same.
constexpr std::array kElsewhere{
    ForeignKeys{" lr learningrate ", "/optimizer/params/lr"},
    ForeignKeys{" weightdecay wd ", "/optimizer/params/weight_decay"},
    ForeignKeys{" beta1 beta2 betas adambeta1 adambeta2 ", "/optimizer/params/betas"},
    ForeignKeys{" eps epsilon adameps adamepsilon ", "/optimizer/params/eps"},
    ForeignKeys{" momentum ", "/optimizer/params/momentum"},
    ForeignKeys{" optim optimizername optimizertype ", "/optimizer/type"},
    ForeignKeys{" lrscheduler lrschedulertype lrdecaystyle lrschedule ", "/scheduler/type"},
    ForeignKeys{" warmupsteps warmupiters warmupratio lrwarmupiters numwarmupsteps ",
                "/scheduler/params/warmup_num_steps"},
    ForeignKeys{" minlr ", "/scheduler/params"},
    ForeignKeys{" batchsize globalbatchsize gbs ", "/train_batch_size"},
    ForeignKeys{" microbatchsize mbs perdevicetrainbatchsize devicebatchsize ",
                "/train_micro_batch_size_per_gpu"},
    ForeignKeys{
        " microbatches nummicrobatches nmicrobatches gradaccsteps gradaccumulation accumulategradbatches "
        "gradientaccumulationsteps ",
        "/gradient_accumulation_steps"},
    ForeignKeys{" maxsteps numsteps numtrainsteps trainiters maxiters iterations steps totalsteps ",
                "/train_steps"},
    ForeignKeys{" numtrainepochs maxepochs numepochs nepochs ", "/epochs"},
    ForeignKeys{" maxgradnorm maxnorm clipgrad gradclip gradientclipval clipgradnorm ", "/gradient_clipping"},
    ForeignKeys{" evalsteps evalinterval evaluationstrategy evalstrategy valcheckinterval valinterval ",
                "/validation/every_steps"},
    ForeignKeys{" savesteps saveinterval savestrategy checkpointinterval saveeverysteps ",
                "/checkpoint/every_steps"},
    ForeignKeys{" savetotallimit keeplastn keep ", "/checkpoint/keep"},
    ForeignKeys{" asyncsave asyncmode ", "/checkpoint/in_background"},
    ForeignKeys{" outputdir savedir logdir outdir defaultrootdir workdir dumpfolder ", "/run_dir"},
    ForeignKeys{" loggingsteps loginterval logeverynsteps logfreq printevery ", "/steps_per_print"},
    ForeignKeys{
        " gradientcheckpointing recompute recomputegranularity activationcheckpoint checkpointactivations ",
        "/activation_checkpointing/recompute"},
    ForeignKeys{
        " pp ppsize pipelineparallelsize pipelineparalleldegree pipelinemodelparallelsize numstages nstages "
        "stages ",
        "/pipeline/stages"},
    ForeignKeys{" schedule pipelineschedule pipelineparallelschedule ", "/pipeline/schedule"},
    ForeignKeys{" cuts split splitpoints splitspec balance chunks ", "/pipeline/cuts"},
    ForeignKeys{" virtualstages vpp virtualpipelinemodelparallelsize numvirtualstages ",
                "/pipeline/virtual_stages"},
    ForeignKeys{" dp dpsize dataparallelsize dataparalleldegree replicas widths ", "/pipeline/widths"},
    ForeignKeys{" randomseed ", "/seed"},
    ForeignKeys{" accelerator ", "/device"},
    ForeignKeys{" backend ddpbackend distributedbackend ", "/comms/backend"},
    ForeignKeys{" ddptimeout timeout timeouts timeoutminutes ", "/comms/timeout_s"},
    ForeignKeys{" precision mixedprecision torchdtype paramsdtype ",
                "/bf16/enabled, /fp16/enabled or /dtype"},
    ForeignKeys{" lossscale initiallossscale ", "/fp16/loss_scale"},
    ForeignKeys{" dataset datapath traindata datasetname ", "/data"},
    ForeignKeys{" seqlen seqlength sequencelength maxseqlen blocksize maxlength ", "/data/sequence"},
    ForeignKeys{
        " modelname modelnameorpath modelpath architecture arch ",
        "/model; a model from Python is captured first: stagecraft-capture (docs/tutorial/pytorch_model.md)"},
    ForeignKeys{" initfrom pretrained loadcheckpoint ", "/initial_checkpoint"},
    ForeignKeys{" resume resumefromcheckpoint ckptpath ", "the option --resume of train"},
};

/// What nothing here says.
constexpr std::array kAbsent{
    ForeignKeys{
        " zero zerooptimization zerostage fsdp fsdpconfig distributedoptimizer usedistributedoptimizer "
        "dataparallelshardingstrategy ",
        "there is no sharding of weights or optimizer state (ZeRO, FSDP); each stage holds its own layers' "
        "alone (docs/scope.md)"},
    ForeignKeys{
        " tp tpsize tensorparallel tensorparallelsize tensorparalleldegree tensormodelparallelsize "
        "sequenceparallel ",
        "there is no tensor parallelism; a group with it can be planned as one device (docs/scope.md)"},
    ForeignKeys{
        " cp contextparallelsize contextparalleldegree ep expertparallelsize expertmodelparallelsize ",
        "there is no context or expert parallelism"},
    ForeignKeys{" everyepochs everyepoch everynepochs checkvaleverynepoch saveeverynepochs evaleveryepoch ",
                "set every_steps; the line \"Batch\" at a run's start says how many steps an epoch has"},
    ForeignKeys{" reportto wandb tensorboard mlflow logger loggers ",
                "`stagecraft follow RUN_DIR --to tensorboard|wandb|...` sends a run to other tools"},
    ForeignKeys{" numworkers dataloadernumworkers pinmemory prefetchfactor persistentworkers ",
                "data files are mapped into memory, no process reads them"},
    ForeignKeys{" localrank rank worldsize nnodes nprocpernode nodes devices ",
                "the launcher (mpirun, torchrun) says how many processes there are"},
    ForeignKeys{" compile torchcompile ", "compiled parts come with the model: stagecraft-capture --compile"},
    ForeignKeys{" offload offloadoptimizer offloadparam cpuoffload activationoffloading ",
                "nothing is moved to the host's memory"},
};

template <std::size_t N>
std::string_view find(const std::array<ForeignKeys, N>& table, std::string_view key) {
  const std::string word = fmt::format(" {} ", remembered(key));
  for (const ForeignKeys& entry : table) {
    if (entry.keys.find(word) != std::string_view::npos) return entry.said;
  }
  return "";
}

}  // namespace

std::string foreign_place(std::string_view key) {
  const std::string_view here = find(kElsewhere, key);
  return here.starts_with('/') ? std::string(here) : "";
}

std::string foreign_key(std::string_view key) {
  if (const std::string_view here = find(kElsewhere, key); !here.empty()) {
    return fmt::format("does not exist here: it is {}", here);
  }
  if (const std::string_view why = find(kAbsent, key); !why.empty()) {
    return fmt::format("does not exist here: {}", why);
  }
  return "";
}

}  // namespace stagecraft
