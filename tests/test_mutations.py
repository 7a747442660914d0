"""Deliberate errors: each one must be caught by a check that the correct code passes.

A mutation is one line: what is wrong, the module, the exact text, its wrong replacement, and the check that must fail. The
text has to occur once in the module; when the library is rewritten, so is the line.
"""

# ruff: noqa: E501 (one line a mutation)

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest

from fedsaddle import ambiguity, clients, cohort, messages, participation, problem, projections, sampling
from fedsaddle.algorithms import (
    CODASCA,
    SCAFFOLD,
    coda,
    codasca,
    codasca_published,
    cycp,
    fair,
    fedavg,
    fednest,
    fedsgda,
    ffmdr,
    local_minimax,
    pairwise,
    scaffpd,
    stages,
)
from fedsaddle.engines import memory, simulation
from fedsaddle.problems import auc, erm, nonconvex_pl, pairs, quadratic
from tests import (
    harness,
    test_accounting,
    test_core,
    test_ffmdr,
    test_memory,
    test_metrics,
    test_pairwise,
    test_participation,
    test_relations,
    test_robust,
    test_sampling,
    test_truth,
)


class Mutation(NamedTuple):
    error: str
    module: ModuleType
    old: str
    new: str
    check: Callable[[], None]


@cache
def by(case: str) -> Callable[[], None]:
    """The reference check of a case."""
    return partial(harness.agrees, case)


codasca_truth = harness.corrected(CODASCA(lr=0.05, local_steps=10))
scaffold_truth = harness.corrected(SCAFFOLD(lr=0.05, local_steps=10))
auc_truth = harness.auc_reaches_best_pairwise
auc_field = partial(test_core.test_field_is_the_derivative_of_the_losses, "auc")


def pieces() -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_core.test_pieces_do_not_matter(patch)


MUTATIONS = [
    # ---- distributionally robust learning
    Mutation("c by the old weights", scaffpd, "c = self._of(by, s, who) @ heard.gradient", "c = self._of(old, s, who) @ heard.gradient", by("scaff_pd")),
    Mutation("extrapolation the other way", scaffpd, "(1 + theta) * now - theta * before", "(1 - theta) * now + theta * before", by("scaff_pd")),
    Mutation("the direction by equal weights", scaffpd, "direction = c + self._of(by, s, who) @ (delta - c)", "direction = delta.mean(-2, keepdim=True)", by("scaff_pd")),
    Mutation("those who answer stand for themselves alone", scaffpd, "own * (lam.shape[-1] / own.shape[-1]) /", "own /", by("scaff_pd-some")),
    Mutation("sums over a part by weights that follow who took part", scaffpd, "else old  #", "else lam  #", by("scaff_pd-some")),
    Mutation("participants weigh too little while losses fall", scaffpd, "else old  #", "else lam  #", partial(test_robust.test_a_part_of_the_clients_gets_near_the_robust_optimum, 0)),
    Mutation("the weights of a part follow the draw", scaffpd, "else old  #", "else lam  #", test_robust.test_the_weights_of_a_part_do_not_follow_who_takes_part),
    Mutation("zero weights are divided by their sum", scaffpd, ".clamp(min=tiny)", "", test_robust.test_weights_that_are_all_zero_stop_x_for_a_round),
    Mutation("no c where nobody was asked", scaffpd, "direction = c + self._of(by, s, who) @ (delta - c)", "direction = self._of(by, s, who) @ delta", by("scaff_pd-some")),
    Mutation("flipped correction", scaffpd, "g - c_k + m.c if", "g + c_k - m.c if", by("scaff_pd")),
    Mutation("Delta is not divided by J", scaffpd, "(z - u) / (m.lr * self.local_steps)", "(z - u) / m.lr", by("scaff_pd")),
    Mutation("gamma grows, tau does not shrink", scaffpd, "tau * (gamma / new) ** 0.5, new", "tau, new", by("scaff_pd-growing")),
    Mutation("DRFA scales losses by who was asked", fair, "(N / len(who))", "(N / M)", test_robust.test_drfa_estimates_losses_by_those_who_answered),
    Mutation("AFL averages by the new weights", scaffpd, "self._of(lam, s, who) @ (heard.z - s.z)", "self._of(psi.prox(lam, now, self.dual_lr), s, who) @ (heard.z - s.z)", by("afl")),
    Mutation("weights follow the smallest loss", scaffpd, "+ self.dual_lr * losses, dim=-1)", "- self.dual_lr * losses, dim=-1)", by("agnostic_fedavg")),
    Mutation("weights forget what they were", scaffpd, "torch.softmax(lam.clamp(min=torch.finfo(lam.dtype).tiny).log() + ", "torch.softmax(", by("agnostic_fedavg")),
    Mutation("chi2 forgets N", ambiguity, "(self.rho * lam.shape[-1] + 1 / sigma)", "(self.rho + 1 / sigma)", by("scaff_pd")),
    Mutation("CVaR has no cap", ambiguity, "capped_simplex(self._cap(lam.shape[-1]))(lam + sigma * s, 0.0)", "simplex()(lam + sigma * s, 0.0)", by("scaff_pd-growing")),
    Mutation("the capped projection stops short", projections, "(high - 1) / (high - low)", "0.5 * (high - 1) / (high - low)", partial(test_robust.test_capped_simplex, 0.4)),
    Mutation("DRFA's snapshot is a step late", fair, "t + 1 == m.at", "t == m.at", by("drfa")),
    Mutation("DRFA forgets N/M", fair, "* (N / len(who))", "* 1.0", by("drfa")),
    Mutation("DRFA's dual step forgets tau", fair, "sigma = self.local_steps * self.dual_lr", "sigma = self.dual_lr", by("drfa")),
    Mutation("q-FedAvg forgets the norm", fair, "q * F ** (q - 1) * (delta**2).sum(-1, keepdim=True) + F**q / self.lr", "F**q / self.lr", by("q_fedavg")),
    Mutation("Delta-FL trains the head", fair, "worst = ids[threshold <= L]", "worst = ids[L <= threshold]", by("delta_fl")),
    Mutation("Delta-FL weighs clients equally", fair, 'who=Draw(worst, one, one.astype(bool)), weights="samples"', "who=Draw(worst, one, one.astype(bool))", by("delta_fl")),
    # ---- FFMDR and the baselines of its paper
    Mutation("x does not take up z", ffmdr, "x = old.x + self.relaxation * (z - old.w)", "x = old.x", by("ffmdr-fixed")),
    Mutation("no reflection", ffmdr, "change = (2 * w - x) - (2 * old.w - old.x)", "change = w - old.w", by("ffmdr-fixed")),
    Mutation("the mean of participants alone", ffmdr, "s.z_bar + share * mean.change", "s.z_bar + mean.change", by("ffmdr-fixed")),
    Mutation("E4.2: the printed prox", ffmdr, 'step = beta if self.server_prox == "derived" else', 'step = beta / clients.n_clients if self.server_prox == "derived" else', by("ffmdr")),
    Mutation("no proximal term", ffmdr, "return _times(c, F) + on_x * (u - centre) / self.beta", "return F", by("ffmdr-fixed")),
    Mutation("a proximal term of y too", ffmdr, "return _times(c, F) + on_x * (u - centre) / self.beta", "return F + (u - centre) / self.beta", by("ffmdr-fixed")),
    Mutation("samples do not weigh in FFMDR", ffmdr, "return _times(c, F) +", "return F +", by("ffmdr-samples")),
    Mutation("the rule forgets that samples weigh", ffmdr, "mu * c)", "mu + 0 * c)", by("ffmdr-samples")),
    Mutation("the exact solve forgets that samples weigh", ffmdr, "_times(None if c is None else c.double().unsqueeze(-1), H)", "H", by("ffmdr-exact-samples")),
    Mutation("clients that stopped go on", ffmdr, "going = torch.where(enough, 0.0, going)", "going = going", by("ffmdr-stops")),
    Mutation("the rule forgets the proximal term", ffmdr, "T = pulled(u, cohort.full_field(u))\n", "T = cohort.full_field(u)\n", by("ffmdr-stops")),
    Mutation("the rule forgets m", ffmdr, "self.accuracy * self._m(problem, c) ** 2 * way", "self.accuracy * way", by("ffmdr-stops")),
    Mutation("all stop with the first", ffmdr, "torch.where(enough, 0.0, going)", "torch.where(enough.any(), 0.0, going)", by("ffmdr-stops")),
    Mutation("small clients step too often", ffmdr, "active = (done < steps) & (going > 0)\n            return torch.where(active, new, u), done + 1, going", "active = going > 0\n            return torch.where(active, new, u), done + 1, going", by("ffmdr")),
    Mutation("every epoch has the same minibatches", ffmdr, "(u, done, going), most, later=e * steps)", "(u, done, going), most, later=0 * steps)", by("ffmdr-fixed")),
    Mutation("SAGA's table is not renewed", ffmdr, "entries.scatter_add_(-2, at, change)", "pass", by("ffmdr-saga")),
    Mutation("SAGA's mean is not renewed", ffmdr, "mean = mean + change.sum(-2) / cohort.sizes.unsqueeze(-1)", "mean = mean * 1.0", by("ffmdr-saga")),
    Mutation("extragradient without the extra", ffmdr, "pulled(half, cohort.full_field(half))", "pulled(u, cohort.full_field(u))", by("ffmdr-extragradient")),
    Mutation("the exact solve forgets beta", ffmdr, "cohort.pad(x).double() / _double(self.beta) - constant", "cohort.pad(x).double() - constant", by("ffmdr-exact")),
    Mutation("the potential forgets how far w went", ffmdr, "+ _dot(step, step) / 8", "", lambda: test_ffmdr.test_monitors_are_those_of_the_reference("derived")),
    Mutation("the residual of participants' work", ffmdr, "gap, s = z - old.w,", "gap, s = z - w,", lambda: test_ffmdr.test_monitors_are_those_of_the_reference("derived")),
    Mutation("the potential forgets z", ffmdr, "H = s_bar - _dot(new, z_bar) / beta", "H = s_bar", test_ffmdr.test_the_potential_falls),
    Mutation("momentum at the old point", local_minimax, "b * a * cohort.field(z, batch)", "b * a * cohort.field(carry[0], batch)", by("momentum_local_sgda")),
    Mutation("STORM with the wrong difference", local_minimax, "(v - cohort.field(z, batch))", "(v + cohort.field(z, batch))", by("fedsgda_m")),
    Mutation("the prox of y by the step of x", local_minimax, "lr = torch.cat([self.lr * one[..., :n_x], self.lr_dual * one[..., n_x:]], dim=-1)\n        z = s.z - lr * way", "z = s.z - torch.cat([self.lr * one[..., :n_x], self.lr_dual * one[..., n_x:]], dim=-1) * way", test_ffmdr.test_one_step_makes_fed_norm_sgda_local_sgda_with_steps_and_proxes_of_their_own),
    Mutation("more steps have more say", local_minimax, "G = total / own", "G = total / most", by("fed_norm_sgda")),
    Mutation("samples do not weigh", local_minimax, "G = G * cohort.sizes.unsqueeze(-1).to(G) / m.size", "G = 1.0 * G", by("fed_norm_sgda")),
    Mutation("y ascends at the moving x", local_minimax, "cohort.field(at_snapshot, batch)[..., n_x:]", "cohort.field(z, batch)[..., n_x:]", by("fedsgda_plus")),
    Mutation("FedSGDA+ forgets g", local_minimax, "cohort.prox(z - lr * torch.cat([F_x, F_y], dim=-1), lr)", "cohort.prox(z - lr * torch.cat([F_x, F_y], dim=-1), 0.0)", by("fedsgda_plus-l1")),
    Mutation("momentum forgets that mixing shortens a step", local_minimax, "cohort.prox(z - a * lr * d, a * lr)", "cohort.prox(z - a * lr * d, lr)", by("momentum_local_sgda-l1")),
    Mutation("STORM forgets g", local_minimax, "cohort.prox(z - lr * v, lr)", "cohort.prox(z - lr * v, 0.0)", by("fedsgda_m-l1")),
    Mutation("the server of Fed-Norm-SGDA forgets g", local_minimax, "prox(z, tau * self.server_lr * lr)", "prox(z, 0.0)", by("fed_norm_sgda-l1")),
    Mutation("FEDNEST takes g for the whole loop in each step", fednest, "block), step_lr)[..., block]", "block), lr)[..., block]", by("fednest-l1")),
    Mutation("CODASCA forgets g", codasca, "cohort.prox(z - lr * (F + correction), lr)", "cohort.prox(z - lr * (F + correction), 0.0)", by("codasca-l1")),
    Mutation("FEDNEST's correction is flipped", fednest, "F - cohort.field(z, batch)[..., block] + m.mean", "F + cohort.field(z, batch)[..., block] - m.mean", by("fednest")),
    Mutation("FEDNEST's x moves with the old y", fednest, "z, loop = torch.cat([z[..., :n_x], y], dim=-1), loop + 1", "z, loop, last = z, loop + 1, y", by("fednest")),
    # ---- pairs of samples
    Mutation("E2.1: nabla_1 in place of nabla_2", pairwise, "g_2 = psi.d2(p_1, active.s_2.unsqueeze(-2))", "g_2 = psi.d1(p_1, active.s_2.unsqueeze(-2))", test_pairwise.both_halves_are_the_gradient),
    Mutation("the passive half is missing", pairwise, "_known(g_2, p_1)), *active.shared())\n\n        def step(\n            z", "0 * g_2), *active.shared())\n\n        def step(\n            z", test_pairwise.both_halves_are_the_gradient),
    Mutation("owners do not weigh more", pairwise, "g_1.mean(-2) / self.shares[0]", "g_1.mean(-2)", by("cycp_pairwise")),
    Mutation("sides are mixed up", pairwise, "psi.d1(active.s_1.unsqueeze(-2), p_2)", "psi.d1(active.s_1.unsqueeze(-2), p_1)", by("cycp_pairwise")),
    Mutation("pools of the same epoch", pairwise, "if epoch != s.epoch and filling is not None:", "if filling is not None:", test_pairwise.test_passive_scores_are_those_of_the_epoch_before),
    Mutation("an empty epoch empties the pool", pairwise, "return cls(torch.where(n > 0, new, old), torch.where(n > 0, n, before.n))", "return cls(new, n)", by("rs_pairwise")),
    Mutation("absent scores are shared", pairwise, "h_1.masked_fill(absent_1, math.nan)", "h_1", by("cycp_pairwise")),
    Mutation("the first epoch moves the model", pairwise, "return State(s.z, s.m, None, self._filled", "return State(0.99 * s.z, s.m, None, self._filled", test_pairwise.test_the_first_epoch_does_not_move_the_model),
    Mutation("all pairs are one to one", pairwise, 'if self.pairing == "one_to_one" else r.unsqueeze(-3)', "if True else r.unsqueeze(-3)", by("cycp_pairwise-all_pairs")),
    Mutation("u is not kept", pairwise, "torch.logaddexp((1 - rate).log() + old, rate.log() + log_g)", "log_g", by("fedxl2")),
    Mutation("u weighs the wrong way", pairwise, "(1 - rate).log() + old, rate.log() + log_g", "rate.log() + old, (1 - rate).log() + log_g", by("fedxl2")),
    Mutation("a positive drawn twice counts its last g", pairwise, "torch.where(same, log_g.unsqueeze(-2), -math.inf).logsumexp(-1) - same.sum(-1).to(log_g).log()", "log_g", by("fedxl2")),
    Mutation("the active half has no f'(u)", pairwise, "(inner - own.unsqueeze(-1)).exp().unsqueeze(-1) * psi.d1", "1.0 * psi.d1", by("fedxl2")),
    Mutation("the passive half has no f'(v)", pairwise, "(inner.unsqueeze(-1) - log_v).exp() * psi.d2", "1.0 * psi.d2", by("fedxl2")),
    Mutation("momentum is not sent", pairwise, "return self._reply(cohort, m.stage, scores, z, average), log_u", "return self._reply(cohort, m.stage, scores, z, m.m), log_u", by("fedxl2-all_pairs")),
    Mutation("labels are noised", pairwise, "(h + noise)[..., : k - extra], h[..., k - extra :]", "(h + noise)[..., : k - extra], (h + noise)[..., k - extra :]", by("cycp_pairwise-disguised-contrastive")),
    Mutation("codes are cut off, not rounded", pairwise, "codes = ((own - low) / step).round()", "codes = ((own - low) / step).floor()", by("cycp_pairwise-disguised")),
    Mutation("both sides have one draw", cohort, "subkey(key, k) for k in (0, 1)", "subkey(key, 0) for k in (0, 1)", by("cycp_pairwise-contrastive")),
    Mutation("a pool is drawn in one order", clients, "            positions.expand_as(sizes),", "            0 * positions.expand_as(sizes),", by("cycp_pairwise-disguised")),
    Mutation("both pools have one draw", clients, "self.round, pool) for pool in pools", "self.round, 0) for pool in pools", by("cycp_pairwise")),
    Mutation("small sides are not filled", sampling, "slot = slot % n", "slot = slot * (slot < n)", by("cycp_pairwise")),
    Mutation("the hinge has no corner", pairs, "return -2 * (self.margin - t).clamp(min=0)", "return -2 * (self.margin - t)", partial(test_pairwise.test_derivatives_are_those_of_the_value, pairs.SquaredHinge(0.8))),
    Mutation("the sigmoid forgets its scale", pairs, "return -psi * (1 - psi) / self.scale", "return -psi * (1 - psi)", by("cycp_pairwise")),
    Mutation("scores count as 32 bits", messages, "math.ceil(k * tree.bits / 32)", "k", partial(test_accounting.test_section_7, "rs_pairwise-8_bits", None)),
    # ---- cyclic participation
    Mutation("amplification from the new iterate", cycp, "s.anchor + self.amplification * (z - s.anchor), lr=0.0)\n        return AmplifiedState", "z + self.amplification * (z - s.anchor), lr=0.0)\n        return AmplifiedState", by("amplified_fedavg")),
    Mutation("the anchor stays", cycp, "return AmplifiedState(z, z, s.round + 1)", "return AmplifiedState(z, s.anchor, s.round + 1)", by("amplified_fedavg")),
    Mutation("amplified a round late", cycp, "if (s.round + 1) % self.period:\n            return AmplifiedState", "if s.round % self.period:\n            return AmplifiedState", by("amplified_fedavg")),
    Mutation("variates renewed within a period", cycp, "return State(z, s.anchor, s.c, coming, s.round + 1)", "return State(z, s.anchor, s.c + coming, 0 * coming, s.round + 1)", by("amplified_scaffold")),
    Mutation("a period's sums are not cleared", cycp, "torch.where(new, 0.0, total)", "total", by("amplified_scaffold")),
    Mutation("a second visit counts again", cycp, "- c_i - before", "- c_i", by("amplified_scaffold-long")),
    Mutation("variates of participants alone", cycp, "s.coming + share * mean.dc", "s.coming + mean.dc", by("amplified_scaffold")),
    Mutation("flipped amplified variates", cycp, "F - c_i + m.c", "F + c_i - m.c", by("amplified_scaffold")),
    # ---- FedSGDA
    Mutation("STORM corrects with a flipped sign", fedsgda, "(1 - alpha) * (old.e - F_point) + F", "(1 - alpha) * (old.e + F_point) + F", by("fedsgda")),
    Mutation("STORM has no correction", fedsgda, "(1 - alpha) * (old.e - F_point) + F", "(1 - alpha) * old.e + alpha * F", by("fedsgda")),
    Mutation("STORM keeps the first point", fedsgda, "e = F if F_point is None else (1 - alpha) * (old.e - F_point) + F\n        return Estimate(e, z, e)", "e = F if F_point is None else (1 - alpha) * (old.e - F_point) + F\n        return Estimate(e, old.point, e)", by("fedsgda")),
    Mutation("SPIDER adds the wrong difference", fedsgda, "old.e + (F - F_point)", "old.e + (F_point - F)", by("fedsgda-spider")),
    Mutation("SVRG's anchor moves", fedsgda, "Estimate(F - F_point + old.anchor, old.point, old.anchor)", "Estimate(F - F_point + old.anchor, z, old.anchor)", by("fedsgda-svrg")),
    Mutation("averaging weighs the other way", fedsgda, "(1 - alpha) * old.e + alpha * F\n", "alpha * old.e + (1 - alpha) * F\n", by("fedsgda-averaged")),
    Mutation("alpha decays like the steps", fedsgda, "** (2 * self._power())", "** self._power()", by("fedsgda")),
    Mutation("alpha is not bounded by one", fedsgda, "else min(1.0, alpha)", "else alpha", by("fedsgda-storm-margin")),
    Mutation("steps do not decay", fedsgda, "slower = (r + 1) ** self._power()", "slower = 1.0", by("fedsgda")),
    Mutation("rounds count from one", fedsgda, "slower = (r + 1) ** self._power()", "slower = (r + 2) ** self._power()", by("fedsgda")),
    Mutation("local steps forget the own field at the start", fedsgda, "- cohort.field(m.z, batch) + m.e", "+ 0 * m.e", by("fedsgda")),
    Mutation("local steps are not corrected", fedsgda, "d = cohort.field(z, batch) - cohort.field(m.z, batch) + m.e", "d = m.e", by("fedsgda")),
    Mutation("both phases ask the same clients", fedsgda, "else clients.sample()", "else None", by("fedsgda")),
    Mutation("a fresh start asks few", fedsgda, "if fresh and estimator.periodic", "if False", by("fedsgda-spider")),
    Mutation("never afresh", fedsgda, "return r == 0 or again", "return r == 0", by("fedsgda-spider")),
    Mutation("a large cohort is not the square", fedsgda, "clients.round_size() ** 2", "clients.round_size()", by("fedsgda-spider-squared")),
    Mutation("y takes x's step", fedsgda, "cohort.per_variable(x=m.lr, y=m.lr_dual)", "m.lr", by("fedsgda")),
    Mutation("wells without their width", nonconvex_pl, "slope = to_a / self.nu *", "slope = to_a *", by("fedsgda-mb")),
    Mutation("coupling flipped", nonconvex_pl, "d_x = slope + (to_c", "d_x = slope - (to_c", by("fedsgda-mb")),
    Mutation("memory is read from the blank row", memory, "at = self._at(ids)\n        side", "at = 0 * ids\n        side", by("scaffold")),
    Mutation("new clients share a row", memory, "self._used + new.cumsum(-1, dtype=np.int32) - 1", "self._used + 0 * at", by("scaffold-some")),
    Mutation("a grown memory is lost", memory, "out[..., : old.shape[-2], :] = old", "out.zero_()", partial(test_memory.test_it_is_a_dictionary, 1)),
    # ---- control variates
    Mutation("CODASCA steps with flipped variates", codasca, "correction = m.c - c_k", "correction = c_k - m.c", codasca_truth),
    Mutation("CODASCA steps without its own variate", codasca, "correction = m.c - c_k", "correction = m.c", codasca_truth),
    Mutation("CODASCA updates with a flipped c", codasca, "new = c_k - m.c +", "new = c_k + m.c +", codasca_truth),
    Mutation("CODASCA updates with flipped progress", codasca, "(m.z - z) / (steps", "(z - m.z) / (steps", codasca_truth),
    Mutation("CODASCA divides by lr alone", codasca, "/ (steps * lr)", "/ lr", codasca_truth),
    Mutation("CODASCA divides by I alone", codasca, "/ (steps * lr)", "/ steps", codasca_truth),
    Mutation("CODASCA divides by the first stage's lr", codasca, "/ (steps * lr)", "/ (steps * self.lr)", by("codasca")),
    Mutation("CODASCA variates are not reset", codasca, "if self.reset_variates:", "if False:", by("codasca")),
    Mutation("CODASCA forgets only the server's variate", codasca, "clients.forget()", "pass", by("codasca")),
    Mutation("CODASCA variates are reset when kept", codasca, "if self.reset_variates:", "if True:", by("codasca-kept")),
    Mutation("CODASCA variate of the participants", codasca, "share * mean.dc", "mean.dc", by("codasca-some")),
    Mutation("CODASCA variates leave out the prox", codasca, "(m.z - z) / (steps * lr)", "(m.z - z) / (steps * lr) - gamma * (z - v_ref)", by("codasca")),
    Mutation("CODASCA reply is not a change", codasca, "Up(z, new - c_k), new", "Up(z, new), new", by("codasca")),
    Mutation("SCAFFOLD steps with flipped variates", fedavg, "- c_k + s.c), self.lr)", "+ c_k - s.c), self.lr)", scaffold_truth),
    Mutation("SCAFFOLD updates with a flipped c", fedavg, "new = c_k - s.c +", "new = c_k + s.c +", scaffold_truth),
    Mutation("SCAFFOLD divides by lr alone", fedavg, "/ (self.local_steps * self.lr)", "/ self.lr", scaffold_truth),
    Mutation("SCAFFOLD variate at the new iterate", fedavg, "new = c_k - s.c + (s.z - z) / (self.local_steps * self.lr)", "new = cohort.full_field(z)", by("scaffold")),
    Mutation("SCAFFOLD variate of the participants", fedavg, "share * mean.dc", "mean.dc", by("scaffold-some")),
    Mutation("SCAFFOLD clients keep no variate", fedavg, "return VariateReply(z, new - c_k), new", "return VariateReply(z, new - c_k), c_k", by("scaffold")),
    # ---- the server's step
    Mutation("CODASCA extrapolates from the mean", codasca, "z = s.z + self.server_lr * (mean.z - s.z)", "z = mean.z + self.server_lr * (mean.z - s.z)", by("codasca-last")),
    Mutation("CODASCA has no server step", codasca, "z = s.z + self.server_lr * (mean.z - s.z)", "z = mean.z", by("codasca-last")),
    Mutation("Local SGDA extrapolates from the mean", fedavg, "z = s.z + self.server_lr * (mean.z - s.z)\n        return State", "z = mean.z + self.server_lr * (mean.z - s.z)\n        return State", by("local_sgda")),
    Mutation("SCAFFOLD extrapolates from the mean", fedavg, "z = s.z + self.server_lr * (mean.z - s.z)  # x <-", "z = mean.z + self.server_lr * (mean.z - s.z)  # x <-", by("scaffold-auc")),
    Mutation("sample weights are ignored", fedavg, "self.local_descent_ascent, s, weights=self.weights", "self.local_descent_ascent, s", by("fedavg-samples")),
    Mutation("samples weigh although clients should", fedavg, "self.local_descent_ascent, s, weights=self.weights", 'self.local_descent_ascent, s, weights="samples"', by("fedavg")),
    Mutation("SCAFFOLD ignores sample weights", fedavg, "self.corrected_steps, s, weights=self.weights", "self.corrected_steps, s", by("scaffold-samples")),
    Mutation("CODASCA ignores sample weights", codasca, "down, weights=self.weights", "down", by("codasca-samples")),
    Mutation("CODA+ ignores sample weights", coda, "last), weights=self.weights", "last)", by("coda_plus-samples")),
    Mutation("CODA's dual ignores sample weights", coda, "dual_from(statistics, weights)", "dual_from(statistics)", by("coda-samples")),
    Mutation("CODA's weights do not follow the participants", coda, "size_weights[ids]", "size_weights[: len(ids)]", by("coda-samples")),
    Mutation("owners of a class weigh equally", auc, "weights * n / (s.n_pos", "weights * (n > 0) / (s.n_pos", by("coda-samples")),
    Mutation("the share of weighted clients is M/N", clients, "if per is None:\n            return collected.result(), answered", "if True:\n            return collected.result(), answered", by("codasca-samples-some")),
    Mutation("weighted variates are the participants' alone", codasca, "share * mean.dc", "mean.dc", harness.corrected_by_samples(harness.Uniform(3))),
    Mutation("weights do not follow the participants", clients, "own = per[at]", "own = per[: len(at)]", by("fedavg-samples-some")),
    Mutation("a client drawn twice counts once", clients, "w = torch.as_tensor(counts, dtype=torch.float64)", "w = torch.ones(len(ids), dtype=torch.float64)", by("local_sgda-clients_twice")),
    Mutation("the share counts silent clients", clients, "return collected.result(), answered / self.n_clients", "return collected.result(), 5 / self.n_clients", by("codasca-failures")),
    # ---- local steps
    Mutation("the dual step size is ignored", fedavg, "self.lr if self.lr_dual is None else self.lr_dual", "self.lr", by("local_sgda")),
    Mutation("FedProx pulls to the origin", fedavg, "self.mu * (z - s.z)", "self.mu * z", by("fedprox")),
    Mutation("FedProx pushes", fedavg, "self.mu * (z - s.z)", "self.mu * (s.z - z)", by("fedprox")),
    Mutation("FedProx pulls twice as hard", fedavg, "self.mu * (z - s.z)", "2 * self.mu * (z - s.z)", by("fedprox")),
    Mutation("the dual descends", problem, "F[..., self.n_x :].neg_()", "F[..., self.n_x :].mul_(1)", codasca_truth),
    Mutation("the quadratic's coupling has the wrong sign", quadratic, '+ form(x, data["B"], y)', '- form(x, data["B"], y)', codasca_truth),
    Mutation("every step has the first minibatch", cohort, "self._gathered, carry, rows[of], w, at", "self._gathered, carry, rows[:block], w, at", by("local_sgda")),
    Mutation("every round has the same minibatches", simulation, "seed, self.round, phase)", "seed, 0, phase)", by("local_sgda")),
    Mutation("every phase has the same minibatches", simulation, "seed, self.round, phase)", "seed, self.round, 0)", by("coda")),
    Mutation("all clients read the first one's rows", cohort, "return own + first.unsqueeze(-1)", "return own", by("fedavg")),
    Mutation("clients in a chunk share minibatches", sampling, "t), ids.unsqueeze(-1))", "t), ids.unsqueeze(-1) * 0)", by("fedavg")),
    Mutation("small clients weigh 1/B", sampling, "present / taken.double()", "present / float(batch_size)", by("fedavg")),
    Mutation("absent slots weigh too", sampling, "present / taken.double()", "torch.ones_like(present) / taken.double()", by("fedavg")),
    Mutation("full batches weigh all samples alike", cohort, "w = (rows < n) / n.to(self._like)", "w = (rows < n) / n.max().to(self._like)", by("codasca-full_batch")),
    Mutation("the prox is not applied", cohort, "return self.problem.prox(z, lr)", "return z", by("local_sgda-margin")),
    # ---- stages
    Mutation("CODA+ pulls to the round's start", coda, "gamma * (z - v_ref)", "gamma * (z - m.z)", by("coda_plus")),
    Mutation("CODA+ pushes away from the centre", coda, "F + gamma * (z - v_ref)", "F - gamma * (z - v_ref)", by("coda_plus")),
    Mutation("CODA+ pulls twice as hard", coda, "F + gamma * (z - v_ref)", "F + 2 * gamma * (z - v_ref)", by("coda_plus")),
    Mutation("CODA+ keeps its first centre", coda, "return State(z, z[..., : clients.problem.n_x], progress)", "return State(z, s.v_ref, progress)", by("coda_plus")),
    Mutation("CODA+ moves its centre every round", coda, "return State(z, s.v_ref, progress)", "return State(z, z[..., : clients.problem.n_x], progress)", by("coda_plus")),
    Mutation("CODA+ pulls the dual too", coda, "x=self.gamma, y=0.0", "x=self.gamma, y=self.gamma", by("coda_plus")),
    Mutation("CODASCA pulls to the round's start", codasca, "gamma * (z - v_ref)", "gamma * (z - m.z)", by("codasca")),
    Mutation("CODASCA keeps its first centre", codasca, "return State(z, c, z[..., : clients.problem.n_x], progress)", "return State(z, c, s.v_ref, progress)", by("codasca")),
    Mutation("CODASCA pulls the dual too", codasca, "x=self.gamma, y=0.0", "x=self.gamma, y=self.gamma", by("codasca")),
    Mutation("CODA+ averages round ends", coda, "sums = IterateSum(total, cohort.memory.steps + steps)", "sums = IterateSum(cohort.memory.total + z, cohort.memory.steps + 1)", by("coda_plus")),
    Mutation("CODA+ averages where steps begin", coda, "return z, carry[1] + z", "return z, carry[1] + carry[0]", by("coda_plus")),
    Mutation("CODA+ averages over all stages", coda, "clients.forget()", "pass", by("coda_plus")),
    Mutation("CODA+ counts a round's steps only", coda, "cohort.memory.steps + steps)", "0 * cohort.memory.steps + steps)", by("coda_plus")),
    Mutation("lr does not decay", stages, "self.lr * self.lr_decay**stage", "self.lr", by("coda_plus")),
    Mutation("lr decays from the first stage on", stages, "self.lr_decay**stage", "self.lr_decay ** (stage + 1)", by("codasca")),
    Mutation("I does not grow", stages, "self.local_steps * self.interval_growth**stage", "self.local_steps", by("coda_plus")),
    Mutation("stages do not grow", stages, "self.stage_rounds * self.stage_growth**stage", "self.stage_rounds", by("coda_plus")),
    Mutation("the random output is a round late", stages, "p.done == pick", "p.done == pick + 1", by("codasca")),
    Mutation("the random round is drawn every round", stages, "if p.done == 0 else p.pick", "if True else p.pick", by("codasca")),
    Mutation("the mean of rounds forgets the last", stages, "p.total + z)", "p.total + (z if p.done + 1 < rounds else 0))", by("codasca-rounds")),
    Mutation("the next stage goes on from the last iterate", stages, "return out, Progress", "return z, Progress", by("codasca-rounds")),
    # ---- CODA's dual
    Mutation("CODA inherits its dual", coda, "torch.where(new.isfinite(), new, alpha)", "alpha", by("coda")),
    Mutation("CODA's dual has the wrong sign", auc, "mean(s.neg, s.n_neg) - mean(s.pos, s.n_pos)", "mean(s.pos, s.n_pos) - mean(s.neg, s.n_neg)", by("coda")),
    Mutation("CODA drops clients with one class", auc, "(n > 0).to(n) if weights is None", "((s.n_pos > 0) & (s.n_neg > 0)).to(n) if weights is None", by("coda")),
    Mutation("CODA divides by all clients", auc, "/ share.sum(", "/ torch.ones_like(share).sum(", by("coda")),
    Mutation("CODA counts absent slots", auc, "torch.where(mask & present, values, 0.0)", "torch.where(mask, values, 0.0)", by("coda")),
    Mutation("CODA's dual of another margin", auc, "(self.margin + alpha).clamp", "(1 + alpha).clamp", partial(test_core.test_dual_from_statistics_is_the_optimal_dual, "margin", 0.4)),
    # ---- AUC
    Mutation("AUC ratios are swapped", auc, "ratio = (1 - 2 * self._p) * pos + self._p", "ratio = (2 * self._p - 1) * pos + 1 - self._p", auc_field),
    Mutation("the field's ratios are swapped", auc, "w_pos, alpha=2 - 4 * p)", "w_pos, alpha=4 * p - 2)", auc_truth),
    Mutation("AUC's cross term has swapped ratios", auc, "w_2p, w_pos, alpha=2)  # -2", "2 * w - w_2p, w_pos, alpha=2)  # -2", auc_truth),
    Mutation("AUC's cross term has the wrong sign", auc, "self._one_plus(alpha), signed)", "self._one_plus(alpha), -signed)", auc_truth),
    Mutation("AUC's dual descends", auc, "* (alpha * share) - (signed * h)", "* (alpha * share) + (signed * h)", auc_field),
    Mutation("AUC's dual has no curvature", auc, "2 * p * (1 - p) * (alpha * share)", "0 * (alpha * share)", auc_field),
    Mutation("AUC's a and b are mixed up", auc, "-minus_da, minus_da - both, minus", "minus_da - both, -minus_da, minus", by("local_sgda")),
    Mutation("AUC centres positives on b", auc, "b + (a - b) * pos", "a + (b - a) * pos", auc_field),
    Mutation("the field centres positives on b", auc, "torch.lerp(b, a, pos)", "torch.lerp(a, b, pos)", by("local_sgda")),
    Mutation("AUC couples with alpha, not 1 + alpha", auc, '1 + alpha if self.dual == "gradient" else alpha', "alpha", auc_truth),
    Mutation("each client has its own p", auc, "ratio = (1 - 2 * self._p) * pos + self._p", "q = pos.mean(-1, keepdim=True); ratio = (1 - 2 * q) * pos + q", auc_field),
    Mutation("p is pooled when clients weigh equally", auc, '_mean(n_pos / n, clients.shares("clients")) if self.p', "n_pos.sum() / n.sum() if self.p", auc_truth),
    Mutation("p is a client mean when pooled", auc, "else n_pos.sum() / n.sum()", "else (n_pos / n).mean()", by("local_sgda-pooled-with_replacement")),
    Mutation("p comes from participants alone", auc, "who=clients.everyone()", "who=None", by("codasca-some")),
    Mutation("a piece of the data has the whole dual term", auc, "share = w.sum(-1, keepdim=True)  # 1, or", "share = 1.0  # 1, or", pieces),
    Mutation("the margin dual is not clipped", auc, "alpha.clamp(0.0, _LARGEST_DUAL) if", "alpha if", by("published")),
    Mutation("the margin is one", auc, "(self.margin + z[..., -2:-1]", "(1.0 + z[..., -2:-1]", by("codasca-margin")),
    Mutation("the margin dual keeps p(1-p)", auc, "minus_dalpha = self._margin_step(z) * share", "minus_dalpha = self._margin_step(z) * share * p * (1 - p)", by("codasca-margin")),
    Mutation("clients weigh equally in groups of any size", participation, "own * (1 - scheme.failure**visit.m)", "own * len(members)", test_core.test_unequal_groups_do_not_make_the_scores_collapse),
    Mutation("a large client is in the mean of every round", participation, "q += len(here) * w / (w + others)", "q += w", test_participation.test_one_client_that_weighs_much_weighs_less_than_its_part_where_few_come),
    Mutation("a client weighs twice in its own rounds", participation, "others[here] = w[here].sum() - w[here]", "others[here] = w[here].sum()", partial(test_participation.test_shares_are_those_of_the_rounds_means, participation.Uniform(4), np.array([5.0, 1.0, 2.0, 3.0, 1.0]))),
    Mutation("spider ends where visits do", fedsgda, "return self._estimator.periodic\n\n    # ---- schedules", "return False\n\n    # ---- schedules", partial(test_truth.test_where_estimators_of_fedsgda_end_under_groups_of_unequal_sizes, "spider", True)),
    # ---- empirical risk
    Mutation("the logistic loss has the wrong sign", erm, "-h, h))", "h, -h))", by("fedavg")),
    Mutation("the squared loss is not halved", erm, "(h - target) ** 2 / 2", "(h - target) ** 2", by("fedavg-squared")),
    Mutation("the squared loss regresses the number of the class", erm, "y if y.is_floating_point() else (y == self.positive).to(h)", "y", partial(test_metrics.test_the_squared_loss_ranks_the_positive_class_first, 0)),
    Mutation("cross-entropy has the wrong sign", erm, "return -log_probability.gather", "return log_probability.gather", by("fedavg-cross_entropy")),
    # ---- CODASCA as published
    Mutation("published: not clipped", codasca_published, "(F.clamp(-bound, bound) - mem.c_k", "(F - mem.c_k", by("published")),
    Mutation("published: a and b are clipped", codasca_published, "torch.full_like(bound[..., n:], float(\"inf\"))", "bound[..., n:]", by("published")),
    Mutation("published: no weight decay", codasca_published, "self.weight_decay * v)", "0 * v)", by("published")),
    Mutation("published: variates of clipped gradients", codasca_published, "gradients + F", "gradients + F.clamp(-bound, bound)", by("published")),
    Mutation("published: variates with prox", codasca_published, "gradients + F", "gradients + F + regular", by("published")),
    Mutation("published: the first round has I steps", codasca_published, "1 if first else self.steps_at(stage)", "self.steps_at(stage)", by("published")),
    Mutation("published: the first round is divided by one", codasca_published, "gradients / self.steps_at(m.stage)", "gradients / m.steps", by("published")),
    Mutation("published: the first centre for ever", codasca_published, "torch.where(new_stage, mem.total / mem.steps_done.clamp(min=1), mem.v_ref)", "mem.v_ref", by("published")),
    Mutation("published: centre over all stages", codasca_published, "torch.where(new_stage, 0.0, mem.total)", "mem.total", by("published")),
    Mutation("published: variate of the participants", codasca_published, "share * mean.dc", "mean.dc", by("published-some")),
    # ---- communication, memory, sampling
    Mutation("silent clients send replies", clients, "self.traffic.add(name, down, up, setup)", "self.traffic.add(name, down, up * len(who.ids) // max(answered, 1), setup)", test_accounting.test_failures_cost_the_way_down),
    Mutation("messages to silent clients are free", clients, "down = numbers(message, asked)", "down = numbers(message, int(who.answered.sum()))", test_accounting.test_failures_cost_the_way_down),
    Mutation("set-up counts as training", clients, "setup, replicas = self.round < 0,", "setup, replicas = False,", partial(test_accounting.test_set_up_is_counted_apart, "pooled")),
    Mutation("the prox centre is sent every round", clients, "np.put_along_axis(held, np.atleast_2d(ids), once.version, axis=1)", "pass", partial(test_accounting.test_prox_centre_is_sent_once_a_stage_to_whom_it_reaches, 3)),
    Mutation("all clients hold what one was sent", clients, "np.put_along_axis(held, np.atleast_2d(ids), once.version, axis=1)", "held[:] = once.version", partial(test_accounting.test_prox_centre_is_sent_once_a_stage_to_whom_it_reaches, 3)),
    Mutation("memory is written by position", memory, "return rows.index_copy_(0, index, value)", "return rows[1 : 1 + len(value)].copy_(value)", partial(test_core.test_memory_belongs_to_the_clients_that_worked, 2)),
    Mutation("forgetting gives zeros", memory, "b.expand(*shape[:-1], 1, b.shape[-1]).clone()", "b.new_zeros(*shape[:-1], 1, b.shape[-1])", partial(test_core.test_forget_restores_what_clients_started_with, 10.0)),
    Mutation("rollback is not in reverse", simulation, "self._undo.pop()()", "self._undo.pop(0)()", test_core.test_rollback_takes_back_every_phase_and_forgetting),
    Mutation("rollback does nothing", simulation, "self._undo.pop()()", "self._undo.pop()", test_core.test_a_failed_round_leaves_the_memory_as_it_was),
    Mutation("failures are not counted", clients, "asked - answered", "0", test_accounting.test_failures_cost_the_way_down),
    Mutation("CODA's dual becomes nan", coda, "torch.where(new.isfinite(), new, alpha)", "new", test_core.test_dual_without_one_class_is_inherited),
    Mutation("half the shuffle", sampling, "for pivot, multiplier, offset in zip(pivots, multipliers, offsets, strict=True):", "for pivot, multiplier, offset in list(zip(pivots, multipliers, offsets, strict=True))[:2]:", partial(test_sampling.test_marginals_and_pairs_are_uniform, 7)),
    Mutation("CODA+ sums with every message", coda, "sums if m.last else None", "sums", partial(test_accounting.test_section_7, "coda_plus", None)),
    # ---- the recordings
    Mutation("the average leaves out a step", coda, "return z, carry[1] + z", "return z, carry[1] + 0.999 * z", test_relations.test_stage_output_is_the_mean_over_clients_and_iterates),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[m.error for m in MUTATIONS])
def test_an_error_is_caught(mutation):
    with harness.mutated(mutation.module, mutation.old, mutation.new), pytest.raises(AssertionError):
        mutation.check()


OTHER = [
    c for c in dict.fromkeys(m.check for m in MUTATIONS) if getattr(c, "func", None) is not harness.agrees
]


@pytest.mark.parametrize("check", OTHER)
def test_the_correct_code_passes(check):
    """The reference checks do so in test_reference_agreement.py; here are the others."""
    check()


def test_mutations_leave_the_library_as_it_was():
    before = codasca.CODASCA.round.__code__
    with harness.mutated(codasca, "share * mean.dc", "mean.dc"):
        assert codasca.CODASCA.round.__code__ is not before
    assert codasca.CODASCA.round.__code__ is before
    with (
        pytest.raises(AssertionError, match="occurs 0 times"),
        harness.mutated(codasca, "not in the text", ""),
    ):
        pass
